"""The autograd node of a compiled call: what autograd must be told of a forward and its backward, and no more.

AOTAutograd makes the joint graph, and would run wrappers of its own around the compiled halves at every call. They are there for
tensor subclasses, effects, outputs that share memory with inputs; a trace with any of these keeps them (`layout_of` gives None).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from trainc.torch import compat
from trainc.torch.capture import distributed
from trainc.torch.compat import MutationType, OutputType, PlainTensorMeta, ViewAndMutationMeta, is_traceable_wrapper_subclass
from trainc.torch.joint import stages
from trainc.torch.joint.intermediate import Watch
from trainc.torch.joint.second_order import SecondOrder
from trainc.torch.run.deferred import plain

Tensor = torch.Tensor
Forward = Callable[..., Sequence[Any]]  # inputs -> (new values of inputs that it writes to..., outputs..., saved...)
Backward = Callable[..., Sequence[Tensor | None]]  # (saved..., tangents...) -> each input's gradient
# (saved..., tangents...) -> what makes the gradients of these inputs, when it is asked for them
InParts = Callable[..., Callable[[Sequence[int]], list[Tensor | None]]]
# (inputs that forward writes to, whose new values are the first of its graph's outputs; which of the outputs have a tangent)
Layout = tuple[list[int], list[int]]


def call_of(
    metadata: ViewAndMutationMeta, layout: Layout, detached: list[int], forward: Forward, backward: Backward, again: SecondOrder,
    in_parts: InParts, made: list[int], intermediate: dict[int, int], beside: Sequence[int] = (),
) -> Callable[[list[Tensor]], list[Tensor]]:  # fmt: skip
    """A call with AOTAutograd's contract: a list of the trace's inputs in, its outputs out; inputs that forward writes to are
    written. `metadata`: what AOTAutograd found out about the trace, which is plain; `detached`: inputs that have no gradient, and
    a history; `made`: inputs that the backward makes a gradient of; `intermediate`: outputs that others are made of; `beside`:
    those that the trace has taken the history of, of whose gradients PyTorch makes those of the inputs."""
    (written, tangents), outputs = layout, metadata.output_info
    news, count = len(written), len(written) + len(outputs)
    constant = [*range(news), *[news + i for i, out in enumerate(outputs) if not out.requires_grad and i not in beside]]
    differentiable = [i for i, info in enumerate(metadata.input_info) if info.requires_grad and i not in detached]

    def run(ctx: Any, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        ctx.call, ctx.trainc_watch = again.keep(inputs), None
        values = forward(*inputs)
        if written:  # what is saved, and what is written elsewhere, must not change with it
            theirs = {id(inputs[i]) for i in written}
            values = [t.clone() if id(t) in theirs else t for t in values]
        # A view knows what it is a view of, and so might a node come to own itself; its alias has its version counter.
        ctx.save_for_backward(*[t.detach() if compat.is_view(t) else t for t in values[count:]])
        ctx.mark_non_differentiable(*[values[i] for i in constant])
        ctx.set_materialize_grads(False)  # an output that the loss does not use has None for a tangent, not zeros
        return tuple(values[:count])

    def given_to_plan(ctx: Any, given: Sequence[Tensor | None]) -> tuple[list[Tensor | None], Any]:
        """The tangents, and the call, if no plan makes what is asked for: gradients with a history, or of results."""
        chosen = [None if given[i] is None else plain(given[i]) for i in tangents]
        for tangent in chosen:
            refuse(tangent)
        call = ctx.call
        if not compat.keeps_graph():
            ctx.call = None  # as the saved tensors: whoever keeps the loss does not keep what it was made of
        watched = ctx.trainc_watch is not None and bool(ctx.trainc_watch.wanted())
        watched = watched or any(given[news + i] is not None for i in beside)
        if watched or torch.is_grad_enabled() or any(t is not None and compat.is_legacy_batchedtensor(t) for t in chosen):
            return chosen, call
        again.firsts += 1
        return chosen, None

    def leaves_without(ctx: Any, gradients: Sequence[Tensor | None]) -> list[Tensor]:
        """The leaves that this node leads to and has no gradient for."""
        places = [i for i, wanted in enumerate(ctx.needs_input_grad) if wanted]
        nodes = [node for node, _ in ctx.next_functions if node is not None]
        return [n.variable for i, n in zip(places, nodes, strict=True) if gradients[i] is None and hasattr(n, "variable")]

    def gradients_again(
        ctx: Any, call: Any, chosen: list[Tensor | None], given: Sequence[Tensor | None], wanted: list[int]
    ) -> dict[int, Tensor | None]:
        others = {i: plain(given[news + i]) for i in beside if given[news + i] is not None}
        defined = {i - news: t for i, t in zip(tangents, chosen, strict=True) if t is not None} | others
        return again.gradients(call, defined, wanted, ctx.trainc_watch, beside=bool(others))

    class Compiled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Tensor) -> tuple[Tensor, ...]:
            return run(ctx, inputs)

        @staticmethod
        @compat.dynamo_disable  # a function of torch.compile's may call backward(): Dynamo would trace what runs in there
        def backward(ctx: Any, *given: Tensor | None) -> tuple[Tensor | None, ...]:
            saved = ctx.saved_tensors
            chosen, call = given_to_plan(ctx, given)
            if call is not None:
                gradients = gradients_again(ctx, call, chosen, given, [i for i in differentiable if ctx.needs_input_grad[i]])
                return tuple([gradients.get(i) for i in range(len(metadata.input_info))])
            gradients = tuple(backward(*saved, *chosen))
            if any(tangent is None for tangent in chosen):
                again.refuse_unreached(leaves_without(ctx, gradients))
            return gradients

    class Staged(torch.autograd.Function):
        """The same, of a call whose gradients stages.py hands out: autograd is told of the first group of its inputs."""

        @staticmethod
        def forward(
            ctx: Any, inputs: Sequence[Tensor], groups: list[list[int]], shared: stages.Shared, token: Tensor | None, *_: Tensor
        ) -> tuple[Tensor, ...]:
            ctx.groups, ctx.shared = groups, shared
            return run(ctx, inputs)

        @staticmethod
        @compat.dynamo_disable
        def backward(ctx: Any, *given: Tensor | None) -> tuple[Tensor | None, ...]:
            saved = ctx.saved_tensors
            chosen, call = given_to_plan(ctx, given)
            if call is not None:
                found = gradients_again(ctx, call, chosen, given, [i for group in ctx.groups for i in group])
                ctx.shared.gradients = lambda places: [found.get(i) for i in places]
            else:
                ctx.shared.gradients = in_parts(*saved, *chosen)
            first = ctx.shared.give(ctx.groups[0], len(ctx.groups) == 1)
            return None, None, None, None, *first

    for node in (Compiled, Staged):
        again.keep_hooks(compat.node_of(node), tangents[0] if len(tangents) == 1 and not beside else None)

    groups_of: weakref.WeakKeyDictionary[Any, list[list[int]]] = weakref.WeakKeyDictionary()  # by DDP

    def groups(wrapper: Any, inputs: Sequence[Tensor]) -> list[list[int]]:
        found = groups_of.get(wrapper)
        if found is None:
            wanted = [i for i in made if i in differentiable]
            found = groups_of[wrapper] = stages.groups_of(wanted, inputs, wrapper.bucket_bytes_cap)
        if len(found) == 1 or stages.may_be_staged(inputs, [i for group in found for i in group]):
            return found
        return [[i for group in found for i in group]]

    def applied(inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        # Autograd is told of the inputs that have a gradient: DDP takes a parameter that it is told of for one that is used.
        if (wrapper := distributed.reducing()) is None or not (chosen := groups(wrapper, inputs))[0]:
            return Compiled.apply(*inputs)
        shared, token = stages.chained(chosen, inputs)
        return Staged.apply(inputs, chosen, shared, token, *[inputs[i] for i in chosen[0]])

    def watch(values: Sequence[Tensor]) -> None:
        with compat.DisableTorchFunctionSubclass():
            node = values[next(iter(intermediate))].grad_fn
            if node is not None:
                node.trainc_watch = Watch(intermediate, values, node, news)

    def call(inputs: list[Tensor]) -> list[Tensor]:
        given = list(inputs)
        for i in detached:
            given[i] = given[i].detach()
        if torch.is_grad_enabled():
            values = applied(given)
        else:  # the trace has a region with gradients inside of one without
            with torch.enable_grad():
                values = Compiled.apply(*given)
        if intermediate:
            watch(values)
        if written:
            torch._foreach_copy_([inputs[i] for i in written], values[:news])
        return list(values[news:])

    return compat.boxed(call)


def layout_of(metadata: ViewAndMutationMeta) -> Layout | None:
    """Of a plain trace; None of another."""
    if not is_plain(metadata):
        return None
    written = list(metadata.mutated_inp_runtime_indices)
    return written, [len(written) + i for i, out in enumerate(metadata.output_info) if compat.wants_gradient(out)]


def is_plain(metadata: ViewAndMutationMeta) -> bool:
    """Whether all inputs and outputs are ordinary tensors, no output shares memory with another tensor, and forward writes to
    nothing but elements of tensors without gradients (running statistics)."""
    kinds = (OutputType.non_alias, OutputType.unsafe_view_alias)
    tensors = (*metadata.subclass_inp_meta, *metadata.subclass_fw_graph_out_meta, *metadata.subclass_tangent_meta)
    return (
        all(isinstance(tensor, PlainTensorMeta) for tensor in tensors)
        and all(out.output_type in kinds and issubclass(out.raw_type, Tensor) for out in metadata.output_info)
        and all(_is_statistic(metadata.input_info[i]) for i in metadata.mutated_inp_runtime_indices)
        and not metadata.mutated_graph_handled_indices_seen_by_autograd
        and not metadata.indices_of_inputs_that_requires_grad_with_mutations_in_bw
        and metadata.num_intermediate_bases == 0
        and metadata.grad_enabled_mutation is None
        and not (metadata.tokens or metadata.num_backward_tokens or compat.saved_inputs(metadata))
        and not (metadata.is_rng_op_functionalized or metadata.num_graphsafe_rng_states)
        and not (metadata.num_symints_saved_for_bw or metadata.num_opaque_objects_saved_for_bw)
        and not metadata.num_tensors_saved_with_no_vc_check
    )


def _is_statistic(info: Any) -> bool:
    return (
        info.mutation_type is MutationType.MUTATED_OUT_GRAPH
        and not (info.mutates_metadata or info.mutates_storage_metadata or info.requires_grad)
    )  # fmt: skip


def refuse(tangent: Tensor | None) -> None:
    """Raises where an output's gradient is none that a plan can read."""
    if compat.functorch_transform() is not None:
        raise RuntimeError("trainc: a compiled backward does not run within vmap, grad or vjp")
    if type(tangent) is not Tensor and is_traceable_wrapper_subclass(tangent):
        raise RuntimeError(f"trainc: an output's gradient is a {type(tangent).__name__}; compiled for an ordinary tensor")


__all__ = ["Backward", "Forward", "InParts", "Layout", "call_of", "is_plain", "layout_of"]
