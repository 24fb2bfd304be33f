"""Where both doors meet: AOTAutograd's joint graph in, a forward and a backward of one opaque call each out.

The forward returns (the user's outputs..., saved primals..., arena). The arena is one uint8 tensor with all that the plan
saves, an ordinary saved tensor to autograd, which thereby owns its lifetime; the backward reads it and frees nothing. The
primals are saved as they are, or autograd would not see that a weight was changed in between.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from trainc.base import messages
from trainc.base.errors import NotCompiled, UserError
from trainc.base.patches import patched
from trainc.base.records import Compilation
from trainc.torch import compat, numbers
from trainc.torch.capture import distributed, operation_cache, traced_kernels, turns, writes
from trainc.torch.capture.bound import bounded
from trainc.torch.capture.constants import fake_mode_of, lift_constants
from trainc.torch.capture.dtypes import refuse_mixed, refuse_numbers
from trainc.torch.capture.trace import recurrent_layers, tensors_forgotten, without_tokens
from trainc.torch.compat import functorch_config, graph_compile, trace_log
from trainc.torch.graph import wire
from trainc.torch.graph.captured import shared_kernels
from trainc.torch.graph.sizes import Symbols, Template
from trainc.torch.guards.watch import suspended
from trainc.torch.joint import autograd, histories, intermediate
from trainc.torch.joint.decompositions import decompositions
from trainc.torch.joint.node_hooks import keep_to_eagers
from trainc.torch.joint.outputs import root_of
from trainc.torch.joint.own_backward import AsksWhich
from trainc.torch.joint.reached import TangentsOfGradients
from trainc.torch.joint.second_order import BESIDE, INTERMEDIATE, Program, SecondOrder, modes_now
from trainc.torch.joint.specialization import Inference, Specialization, TraceContext
from trainc.torch.joint.storage import beginnings
from trainc.torch.joint.unread import Unread, hides_rows
from trainc.torch.run import rerun
from trainc.torch.run.runner import Runners
from trainc.torch.strided import is_apart

_HALF = "trainc_half"
Make = Callable[[torch.fx.GraphModule, Compilation], Specialization]


class Compiler:
    """What one capture hands to AOTAutograd: the partitioner and the compilers. Of a trace with `symbols` it makes a
    Specialization for each set of sizes, the first for those that were traced; of another trace there is one."""

    def __init__(self, record: Compilation, runners: Runners, symbols: Symbols | None = None, fusion: Any = None,
                 verification: Any = None):  # fmt: skip
        self.runners, self.device, self.symbols, self.fusion = runners, runners.device, symbols, fusion
        self._record = record  # of the first specialization
        self.writes: list[int] = []  # inputs that forward writes to, once it is traced
        self.begin: dict[int, int] = {}  # where inputs begin in their storage that are read by places there
        self._specializations: dict[tuple, Specialization] = {}
        self._template: Template | None = None
        self.shared = shared_kernels(symbols, lambda: self._template, record.name, self.device)
        # A result may be left out (unread.py) where the program does not read it; its first inputs tell whether that pays.
        self.first_inputs: Sequence[Any] = ()
        self.reads_all = False
        # of the graph without a result that is left to whoever reads it
        self.shared_without = shared_kernels(
            symbols, lambda: self._template, record.name, self.device, lambda gm: self._without(gm)
        )
        self._without: Callable[[torch.fx.GraphModule], torch.fx.GraphModule]  # after the partition
        self._make: Make | None = None
        self.reached = TangentsOfGradients()
        self.operations: operation_cache.OperationCache | None = None  # what an earlier trace of the same program has met
        self.is_users: Callable[[torch.Tensor], bool] = lambda _: False
        self._modes = modes_now()
        self.program: Program  # set before the trace, by whoever asks for it
        self.before_backward: Callable[[], None] | None = None  # raises where the program's own backward would find other values
        self.result: Callable[[], Any] = tuple  # the structure of what the call gives back, once it is traced
        self._halves: tuple[autograd.Forward, autograd.Backward, autograd.InParts]  # after the partition
        self._made: list[int] = []  # inputs that the backward makes a gradient of
        self.verification = verification  # verify.Verification, where calls are looked at
        self.layout: autograd.Layout | None = None  # where the graph's inputs and outputs are the program's own
        self.before_results = 0  # of the graph's outputs: new values of inputs
        self.news: list[Any] = []  # the graph's outputs, of which these are the first
        self.reshaped: list[Any] = []  # operations of the trace that gave a tensor another shape in place
        self.otherwise: set[int] = set()  # results whose history is not that of the views that they are made again by
        self.in_written: set[int] = set()  # results that lie in arguments that the program writes
        self.written_unseen: set[int] = set()  # arguments whose history the program's writes leave as it is
        self.expanded: set[int] = set()  # arguments that show a place of their memory more than once
        # Where the program's own backward asks which gradients there are: the results whose gradients alone the plan's is of
        # (where that is known, or else the loss), and those beside them.
        self.differentiated: frozenset[int] = frozenset()
        self.is_alone, self.beside = False, list[int]()
        self.without_history: list[int] = []  # of the graph's outputs: the program's results that autograd knows nothing of
        self.gives_inner = True  # gradients of results that others are made of, to whoever asks for them

    @property
    def learns(self) -> bool:
        """Whether it is traced with gradients on."""
        return self._modes[0][0]

    def _key(self, inputs: Sequence[Any]) -> tuple:
        return self.symbols.key(inputs) if self.symbols is not None else ()

    def _of(self, inputs: Sequence[Any]) -> Specialization:
        return self._specializations[self._key(inputs)]

    def add_sizes(self, inputs: Sequence[torch.Tensor], record: Compilation) -> bool:
        """Makes the plans for these inputs' sizes where there are none; false where the trace does not hold for them."""
        bound = self.symbols.bound(inputs)
        if bound is None:
            return False
        key = self._key(inputs)
        if key not in self._specializations:
            self._specializations[key] = self._make(self._template.at(bound), record)
        return True

    def _first(self, gm: torch.fx.GraphModule, make: Make) -> Specialization:
        distributed.refuse_collectives(gm.graph)
        _refuse_objects(gm.graph)
        traced_kernels.correct_results(gm.graph)
        self.begin = beginnings(gm.graph)
        refuse_mixed(node for node in gm.graph.nodes if not wire.is_backward(node))
        refuse_numbers(gm.graph.nodes)
        self._make, key = make, ()
        if self.symbols is not None:
            self._template = self.symbols.template(gm, self.result())
            gm, key = self._template.at(self.symbols.traced), self.symbols.traced_key
        elif self._record.prints:
            self._record.fingerprint = numbers.fingerprint(gm.graph, self.result())
        self._record.captured = gm.graph
        first = self._specializations[key] = make(gm, self._record)
        return first

    # -- the partitioner ----------------------------------------------------------------------------------------------

    def partition(
        self, gm: torch.fx.GraphModule, joint_inputs: Any, *, num_fwd_outputs: int, **_: Any
    ) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
        wire.mark_backward(gm.graph, num_fwd_outputs)
        wire.give_backward_its_lines(gm.graph)
        _refuse_sparse(gm.graph)
        _refuse_late_writes(gm.graph, num_fwd_outputs)
        placeholders = list(gm.graph.find_nodes(op="placeholder"))
        primals = [node for node in placeholders if not node.name.startswith("tangents")]
        tangents = placeholders[len(primals) :]
        self.reached.own.refuse(gm.graph, tangents)
        outputs = list(next(iter(gm.graph.find_nodes(op="output"))).args[0])
        forward_outputs, gradients = outputs[:num_fwd_outputs], outputs[num_fwd_outputs:]
        self.news = forward_outputs
        wire.mark_late(gm.graph, {p for p, gradient in zip(primals, gradients, strict=False) if gradient is not None})

        constants = lift_constants(gm, tangents[0] if tangents else None, self.is_users)
        count = len(primals) + len(constants)
        _set_outputs(gm, [*outputs, *[None] * len(constants)])
        reached = self.reached.gradients(gradients, tangents)
        self._draws = rerun.draws(gm.graph)
        self._statistics = rerun.statistics(primals)
        context = TraceContext(len(primals), constants, num_fwd_outputs, reached, _written(primals), self._draws, self.device)
        with compat.disable_current_modes():  # these are no tensors of the trace
            self.reads_all = not hides_rows(gm, self.first_inputs)
        self.first_inputs = ()
        self._without = lambda gm: Unread.of(gm, count, num_fwd_outputs, is_sample=True).narrow
        first = self._first(gm, lambda gm, record: Specialization(self, gm, record, context, may_be_unread=True))
        # What the backward reads of what the caller holds: primals, and (from `count` on) results of the forward.
        held = context.held
        saved = [primals[i] if i < count else forward_outputs[i - count] for i in held]
        # AOTAutograd writes new values to some when the forward is over: the backward is given what they were.
        copies = {len(forward_outputs) + k for k, i in enumerate(held) if i in context.written}
        eager = _kept_by_eager(gm.graph, primals)
        unsaved, seen, both = eager.none.intersection(held), eager.seen.intersection(held), eager.both.intersection(held)
        copies.update(len(forward_outputs) + k for k, i in enumerate(held) if i in seen)
        own: set[int] | None = None  # of these, the program's own tensors; known with the first call

        def forward(*inputs: torch.Tensor) -> list[Any]:
            nonlocal own
            if own is None:
                own = {i for i in unsaved if not _is_weight(inputs[i])}
            specialization = self._of(inputs)
            *results, arena = specialization.forward(inputs)
            self._forget_history(results)
            kept = context.held_of(inputs, results, arena)
            if change := specialization.apart.neighbours | context.written | own:
                kept = [t.clone() if i in change else t for i, t in zip(held, kept, strict=True)]
            if both:
                arena.trainc_memory = [inputs[i].detach() for i in both]
            if seen:
                kept = [t.detach() if i in seen else t for i, t in zip(held, kept, strict=True)]
            return [*results, *kept, arena]

        def backward(*inputs: torch.Tensor | None) -> list[Any]:
            return specialization_of(inputs).backward(*split(inputs))

        def in_parts(*inputs: torch.Tensor | None) -> Callable[[Sequence[int]], list[Any]]:
            return specialization_of(inputs).backward_in_parts(*split(inputs))

        def specialization_of(inputs: Sequence[torch.Tensor | None]) -> Specialization:
            if both:
                _refuse_moved([inputs[held.index(i)] for i in both], inputs[len(saved)], self._record.name)
            if torch.is_autocast_enabled(self.device.type):
                messages.warn_once("autocast", AUTOCAST_BACKWARD)
            return context.by_arena[inputs[len(saved)].numel()]

        def split(inputs: Sequence[torch.Tensor | None]) -> tuple:
            return inputs[: len(saved)], inputs[len(saved)], inputs[len(saved) + 1 :]

        with fake_mode_of(primals + tangents):
            arena_meta = torch.empty(first.arena_bytes, dtype=torch.uint8, device=self.device.torch)
        self._halves, self._made = (forward, backward, in_parts), [i for i, made in enumerate(gradients) if made is not None]
        return (
            _opaque("trainc_forward", forward, primals, [*forward_outputs, *saved], arena_meta, copies),
            # of AOTAutograd's node, which may be called within a function of torch.compile's
            _opaque_backward("trainc_backward", compat.dynamo_disable(backward), saved, arena_meta, tangents, gradients),
        )

    def replace(self, specialization: Specialization, other: Specialization) -> None:
        """`other` runs the calls of these sizes from now on."""
        self._specializations = {key: other if old is specialization else old for key, old in self._specializations.items()}

    def call_of_both(self, metadata: Any, detached: list[int]) -> Callable[[list[torch.Tensor]], list[torch.Tensor]] | None:
        """The call of both halves, once there is a partition; None where it takes AOTAutograd's wrappers."""
        self.layout = autograd.layout_of(metadata)
        if self.layout is None:
            if self.is_alone:
                raise NotCompiled("its own backward asks which gradients there are, and results share memory", in_pytorch=True)
            return None
        again = SecondOrder(
            self._record.name, self.device, self.program, self._modes, self.layout[0], self._draws, self._statistics
        )  # fmt: skip
        forward, backward, in_parts = self._halves
        inner = self.reached.intermediate if self.gives_inner else {}
        return autograd.call_of(
            metadata, self.layout, detached, forward, backward, again, in_parts, self._made, inner, self.beside
        )  # fmt: skip

    def without_inner_gradients(self, call: Callable[..., Sequence[Any]]) -> Callable[..., Sequence[Any]]:
        """`call`; where it has AOTAutograd's wrappers, it has no gradients of results that others are made of, and says so."""
        places = [i - self.before_results for i in self.reached.intermediate if i >= self.before_results]
        if self.is_alone:
            return intermediate.refused(self._record.name, functools.partial(self.program.asked, True, BESIDE), self.beside, call)
        if self.layout is not None or not self.gives_inner or not places:
            return call
        told = functools.partial(self.program.asked, True, INTERMEDIATE)
        return intermediate.refused(self._record.name, told, places, call)

    @staticmethod
    def detached(known: list[int], metadata: Any) -> list[int]:
        """The inputs, of the `known` that have no gradient, of whose history autograd is not told; none where it would be told of
        nothing, for results say that they want a gradient, also where none comes to what they are made of."""
        told = [i for i, info in enumerate(metadata.input_info) if info.requires_grad and i not in known]
        return known if told else []

    def without_gradient(self, detached: list[int], metadata: Any) -> list[int]:
        """`detached`, and the parameters that have no gradient: the engine would call hooks of one that autograd is told of, and
        DDP takes it for one that is used."""
        unused = [
            i for i, info in enumerate(metadata.input_info)
            if info.requires_grad and i not in self._made and not (info.mutates_data or info.mutates_metadata)
        ]  # fmt: skip
        return self.detached(sorted({*detached, *unused}), metadata)

    # -- the compilers ------------------------------------------------------------------------------------------------

    def half(self, gm: torch.fx.GraphModule, _inputs: Sequence[Any]) -> Callable[[list[Any]], Any]:
        """Forward and backward: the opaque call itself, without the FX module around it."""
        return next(_boxed(getattr(n.target, _HALF)) for n in gm.graph.nodes if hasattr(n.target, _HALF))

    def inference(self, gm: torch.fx.GraphModule, _inputs: Sequence[Any]) -> Callable[[list[Any]], Any]:
        _refuse_sparse(gm.graph)
        constants = lift_constants(gm, None, self.is_users)
        self.news = list(next(iter(gm.graph.find_nodes(op="output"))).args[0])
        self._first(gm, lambda gm, record: Inference(self, gm, record, constants))
        return _boxed(lambda *inputs: self._forget_history(list(self._of(inputs).forward(inputs))))

    def _forget_history(self, results: list[Any]) -> list[Any]:
        """Views of other results, or of inputs, would have the history of these."""
        for i in self.without_history:
            if isinstance(results[i], torch.Tensor) and compat.is_view(results[i]):
                results[i] = results[i].detach()
        return results


SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)
AUTOCAST_BACKWARD = (
    "backward() was called inside torch.autocast; the compiled backward computes each gradient in the type its forward had, "
    "as backward() outside autocast does. Call backward() outside the autocast block."
)


def _boxed(call: Callable[..., Any]) -> Callable[[list[Any]], Any]:
    def run(args: list[Any]) -> Any:
        inputs = tuple(args)
        args.clear()
        return call(*inputs)

    return compat.boxed(run)


def _refuse_sparse(graph: torch.fx.Graph) -> None:
    """A tensor without strides has no place in a plan, nor in an arena of the interpreter's."""
    for node in graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and value.layout is not torch.strided:
            raise NotCompiled(f"{wire.origin(node)} ({wire.target_name(node.target)}) gives a tensor of layout {value.layout}")


def _refuse_late_writes(graph: torch.fx.Graph, forward_outputs: int) -> None:
    """What forward writes to a tensor that it was given is a result of it, which AOTAutograd copies there. A backward that writes
    to one (of an autograd.Function, say) would do so before its time: as a copy that is left in the joint graph, or, where
    forward writes to it too, within that result."""
    output = next(iter(graph.find_nodes(op="output")))
    results = zip(output.args[0][:forward_outputs], output.meta.get("desc") or (), strict=False)
    news = [node for node, desc in results if hasattr(desc, "mutated_input") and isinstance(node, torch.fx.Node)]
    copies = graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    late = [node for node in news if node.op == "call_function" and not wire.is_forward(node)]
    late += [node for node in copies if node.args[0].op == "placeholder"]
    if late:
        where = wire.origin(late[0]) or late[0].name
        raise NotCompiled(f"{where}: its backward writes to a tensor that forward was given", in_pytorch=True)


def _refuse_objects(graph: torch.fx.Graph) -> None:
    """A plan has tensors and numbers for inputs: not the meshes on which PyTorch's sharded tensors lie."""
    for node in graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        if value is not None and not isinstance(value, (torch.Tensor, bool, int, float, complex, *SYMBOLS)):
            raise NotCompiled(f"it is given a {type(getattr(value, 'real_obj', value)).__name__}, which no plan can read")


class _Kept(NamedTuple):
    """Of the primals, what eager's backward reads:

    none  nothing, for it keeps what was made of them (under autocast, a copy in bf16): the program may write over such an
          argument before the backward, which a plan may make these values of again
    seen  views alone (a linear layer's transposed weight), or nothing: after `p.data = other` these show the memory that was
          the parameter's in the forward, and it does not itself
    both  views, and itself"""

    none: set[int]
    seen: set[int]
    both: set[int]


def _kept_by_eager(joint: torch.fx.Graph, primals: Sequence[torch.fx.Node]) -> _Kept:
    read: set[torch.fx.Node] = set()
    for node in joint.nodes:
        if node.op == "call_function" and not wire.is_forward(node):
            read.update(node.all_input_nodes)
    viewed = {root_of(node) for node in read if root_of(node) is not node}
    itself, views = ({i for i, primal in enumerate(primals) if primal in those} for those in (read, viewed))
    every = set(range(len(primals)))
    return _Kept(every - itself - views, every - itself, itself & views)


def _refuse_moved(tensors: Sequence[torch.Tensor], arena: torch.Tensor, name: str) -> None:
    """Of a tensor that eager keeps in two ways, one of which `p.data = other` changes."""
    before = getattr(arena, "trainc_memory", tensors)  # a hook on saved tensors gave a copy of the arena
    if any(compat.storage_id(a) != compat.storage_id(b) for a, b in zip(before, tensors, strict=True)):
        raise UserError(
            f"{name}: a parameter that several operations use was given other memory (`p.data = other`) between the forward and "
            "its backward. Do it before the forward or after the backward"
        )


def _is_weight(tensor: torch.Tensor) -> bool:
    """Nobody writes over one between a forward and its backward, and a copy of each would be the model once more."""
    leaf = compat.base_of(tensor) if compat.is_view(tensor) else tensor
    return leaf.is_leaf and leaf.requires_grad


def _written(primals: Sequence[torch.fx.Node]) -> set[int]:
    """The primals that AOTAutograd writes new values to when the forward is over (running statistics)."""
    output = next(iter(primals[0].graph.find_nodes(op="output"))) if primals else None
    told = [getattr(desc, "mutated_input", None) for desc in (output.meta.get("desc") or ())] if output else []
    written = [desc for desc in told if desc is not None]
    return {i for i, primal in enumerate(primals) if primal.meta.get("desc") in written}


def _set_outputs(gm: torch.fx.GraphModule, outputs: list[Any]) -> None:
    output = next(iter(gm.graph.find_nodes(op="output")))
    output.args = (tuple(outputs),)


def _callable_named(name: str, run: Callable[..., Any]) -> Callable[..., Any]:
    def call(*inputs: Any) -> Any:
        return run(*inputs)

    call.__name__ = call.__qualname__ = name
    setattr(call, _HALF, run)
    return call


def _opaque(name, run, primals, outputs, arena_meta, copies) -> torch.fx.GraphModule:
    """(outputs and what is saved..., arena) of the primals; a primal among the saved is itself, but for `copies` (by output)."""
    graph = torch.fx.Graph()
    inputs = {node: _copy_placeholder(graph, node) for node in primals}
    call = graph.call_function(_callable_named(name, run), tuple(inputs.values()))
    results = [
        inputs[out] if out in inputs and i not in copies else _result(graph, call, i, out) for i, out in enumerate(outputs)
    ]
    arena = graph.call_function(item_of, (call, len(outputs)))
    arena.meta["val"] = arena_meta
    graph.output((*results, arena))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def _opaque_backward(name, run, saved, arena_meta, tangents, gradients) -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    inputs = [_copy_placeholder(graph, node) for node in saved]
    arena = graph.placeholder("arena")
    arena.meta["val"] = arena_meta
    inputs += [arena, *(_copy_placeholder(graph, node) for node in tangents)]
    call = graph.call_function(_callable_named(name, run), tuple(inputs))
    graph.output(tuple(_result(graph, call, i, gradient) for i, gradient in enumerate(gradients)))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def item_of(values: Any, index: int) -> Any:
    return values[index]


def _copy_placeholder(graph: torch.fx.Graph, node: torch.fx.Node) -> torch.fx.Node:
    copy = graph.placeholder(node.name)
    copy.meta.update(node.meta)
    return copy


def _result(graph: torch.fx.Graph, call: torch.fx.Node, index: int, original: Any) -> Any:
    if not isinstance(original, torch.fx.Node):
        return original
    result = graph.call_function(item_of, (call, index))
    result.meta.update(original.meta)
    return result


# ---- the settings that AOTAutograd runs under ------------------------------------------------------------------------


@contextlib.contextmanager
def aot_settings(compiler: Compiler):
    """Backward without autocast's casts, no donated buffers, no cache of AOTAutograd's own; autograd.py's node where it will do.
    Outputs that the loss does not use give the backward None instead of a tensor of zeros, in AOTAutograd's node, too."""
    wrapped = compat.RUNTIME_WRAPPER.original()
    log_graph = compat.JOINT_GRAPH_LOG.original()

    def with_our_node(call: Any, *, trace_joint: bool, **about: Any) -> Callable[..., Any]:
        compiler.writes = [i for i, info in enumerate(about["runtime_metadata"].input_info) if info.mutates_data]
        compiler.before_results = len(about["runtime_metadata"].mutated_inp_runtime_indices)
        outputs, first = about["runtime_metadata"].output_info, compiler.before_results
        compiler.without_history = [first + i for i, info in enumerate(outputs) if not info.requires_grad]
        if trace_joint or compiler.learns:  # views of arguments alone have no backward, but gradients
            _views_as_eager(outputs, compiler, trace_joint)
        if trace_joint or compiler.learns:
            _keep_histories(about["runtime_metadata"].input_info, compiler.written_unseen)
        if trace_joint:
            known = about["indices_of_inps_to_detach"]
            about["indices_of_inps_to_detach"] = compiler.without_gradient(known, about["runtime_metadata"])
        ours = compiler.call_of_both(about["runtime_metadata"], about["indices_of_inps_to_detach"]) if trace_joint else None
        if ours is None and trace_joint:
            _give_tangents_memory(about["runtime_metadata"])
            _extend(call.__self__, compiler)  # `call` is the apply of AOTAutograd's node
            keep_to_eagers(compat.node_of(call.__self__), None, compiler._record.name, compiler.program.asked)
        made = ours or wrapped(call, trace_joint=trace_joint, **about)
        written = about["runtime_metadata"].mutated_inp_runtime_indices
        # Whether a new value of an input is what BatchNorm moves its statistics to.
        news = [isinstance(new, torch.fx.Node) and wire.is_of_batch_norm(new) for new in compiler.news]
        statistics = [i for i, moved in zip(written, news, strict=False) if moved]
        return _moves_unseen(made, statistics) if statistics else made

    def log_where_asked(*args: Any) -> str | None:  # it writes the graph as text (0.1 s for GPT-2), also where nobody reads that
        asked = graph_compile.aot_joint_log.isEnabledFor(logging.INFO) or trace_log.handlers
        return log_graph(*args) if asked else None

    settings = {"backward_pass_autocast": "off", "enable_autograd_cache": False, "debug_assert": False}
    with (
        functorch_config.patch({key: value for key, value in settings.items() if hasattr(functorch_config, key)}),
        patched(*compat.RUNTIME_WRAPPER, with_our_node),
        patched(*compat.JOINT_GRAPH_LOG, log_where_asked),
        # The switch (config.donated_buffer) is also asked while a backward runs, when it is the user's again.
        patched(*compat.DONATED_BUFFERS, lambda *_: []),
        # Traces.restore puts the generator back, where no other thread draws.
        patched(*compat.GENERATOR_KEPT, contextlib.nullcontext),
        _draws_are_kept(),
        without_tokens(),
    ):
        yield


def _moves_unseen(call: Callable[[list[Any]], Any], statistics: list[int]) -> Callable[[list[Any]], Any]:
    """`call`, which leaves the version of these inputs as it is, as eager's kernel does: a forward in eval mode that came before
    may have its backward afterwards."""

    def run(args: list[Any]) -> Any:
        moved = tuple([args[i] for i in statistics if not args[i].is_inference()])
        with compat.preserve_version_counter(moved):
            return call(args)

    return compat.boxed(run)


def _views_as_eager(outputs: list[Any], compiler: Compiler, has_backward: bool) -> None:
    """AOTAutograd makes results that are views of others, or of arguments, again, by the operations that made them of their
    memory. What is not a view for autograd (`detach()`), it makes of a result that looks the same, to which these have been done.
    Where a tensor was given another shape in place, it is not what its views were made of; and what has another history than
    these views (histories.py) is not made again."""
    of_inputs = (compat.OutputType.alias_of_input, compat.OutputType.is_input)
    for i, info in enumerate(outputs):
        of_result = info.output_type in compat.VIEWS_OF_RESULTS
        if i in compiler.in_written and info.output_type not in of_inputs:  # it would lie in the new values that are copied
            raise NotCompiled("a result is one of several parts of an argument that is written", in_pytorch=True)
        of_expanded = info.output_type in of_inputs and info.base_idx in compiler.expanded
        if of_expanded and compat.is_made_by_strides(info.view_meta_sequence):
            raise NotCompiled("a result is a view, of sizes that change, of an argument that is expanded")
        if of_result and compiler.reshaped:
            raise NotCompiled(f"results share memory, and {compiler.reshaped[0]} gives a tensor another shape", in_pytorch=True)
        if of_result and not info.requires_grad:
            outputs[i] = dataclasses.replace(info, view_meta_sequence=compat.no_views(info.view_meta_sequence))
        elif i in compiler.otherwise and (of_result or info.output_type in of_inputs or not has_backward):
            raise NotCompiled("a result is a view whose gradient does not go to what it is a view of", in_pytorch=True)


def _keep_histories(inputs: list[Any], unseen: set[int]) -> None:
    """AOTAutograd's copies of new values are seen by autograd, but for leaves. Of what is written under `no_grad`, or by
    `x.detach().mul_(2)`, autograd sees nothing: the gradient of x, and what its hooks are told, stay what they were."""
    for i in unseen:
        if inputs[i].mutates_data and inputs[i].requires_grad:
            inputs[i] = dataclasses.replace(inputs[i], is_leaf=True)


def _give_tangents_memory(metadata: Any) -> None:
    """AOTAutograd's node copies each tangent into its output's strides, also where elements of the output share memory: one
    gradient would be written over another."""
    for tangent in metadata.subclass_tangent_meta:
        layout = getattr(tangent, "memory_format", None)
        if layout is not None and layout.memory_format is None and not is_apart(layout.size, layout.stride):
            layout.memory_format = torch.contiguous_format


def _extend(node: type[torch.autograd.Function], compiler: Compiler) -> None:
    """AOTAutograd's node gives no zeros for outputs that are not used; and where a gradient of a gradient may be asked for, which
    it refuses, its program is told, whose next calls PyTorch runs."""
    forward, backward = node.forward, node.backward

    def without(ctx: Any, *inputs: Any) -> Any:
        outputs = forward(ctx, *inputs)
        ctx.set_materialize_grads(False)
        return outputs

    def told(ctx: Any, *tangents: Any) -> Any:
        if torch.is_grad_enabled():
            compiler.program.asked(True)
        return backward(ctx, *tangents)

    node.forward, node.backward = staticmethod(without), staticmethod(told)


def _draws_are_kept() -> contextlib.AbstractContextManager:
    """Within Dynamo, FX takes a draw that nobody reads for dead code, unless Inductor is told to draw as eager does."""
    if compat.TracingContext.try_get() is None:
        return contextlib.nullcontext()
    return compat.inductor_config().patch(fallback_random=True)


def compile_flat(
    module: torch.nn.Module, inputs: Sequence[Any], record: Compilation, compiler: Compiler
) -> Callable[..., Sequence[Any]]:
    """Compiles `module(*inputs) -> tuple of tensors` for these inputs' shapes; returns the compiled call. With a `compiler` that
    has symbols, `inputs` are its fakes, and the call also takes other sizes, once the compiler was asked to `add_sizes`.
    UserError where the memory that `record.limit` allows is not enough."""
    try:
        call = _traced(module, inputs, compiler)
    except AsksWhich:
        if not compiler.differentiated:
            raise
        compiler.is_alone = True
        call = _traced(module, inputs, compiler)
    return compiler.without_inner_gradients(call)


def _traced(module: torch.nn.Module, inputs: Sequence[Any], compiler: Compiler) -> Callable[..., Sequence[Any]]:
    with (
        turns.alone(), aot_settings(compiler), compiler.reached.watched(), tensors_forgotten(),
        recurrent_layers(), traced_kernels.as_eager(), operation_cache.quick(compiler.operations),
        writes.as_eager(compiler.reshaped) as memory, _looked_at(compiler, memory), bounded(),
    ):  # fmt: skip
        return compat.aot_module_simplified(
            module,
            [as_traced(tensor) for tensor in inputs],
            fw_compiler=compiler.half,
            bw_compiler=compiler.half,
            inference_compiler=_unwatched(compiler.inference),
            partition_fn=_unwatched(compiler.partition),
            decompositions=decompositions(),
        )


@contextlib.contextmanager
def _looked_at(compiler: Compiler, memory: writes.Writes) -> Iterator[None]:
    """While AOTAutograd runs the program: at what that is given and gives, as the trace's own tensors. The first run tells."""
    as_function, runs = compat.MODULE_AS_FUNCTION.original(), 0

    def looked_at(module: torch.nn.Module, *about: Any, **settings: Any) -> Callable[..., Any]:
        call = as_function(module, *about, **settings)

        @functools.wraps(call)
        def run(*inputs: Any, **keywords: Any) -> Any:
            nonlocal runs
            own, before = compiler.reached.own, [histories.edge_of(given) for given in inputs]
            own.program_begins(before)
            results = call(*inputs, **keywords)
            own.program_ends(results)
            memory.check_left(inputs, results)
            memory.check_made(results)
            if not runs:
                losses = [i for i, result in enumerate(results) if _is_loss(result)]
                compiler.differentiated = compiler.differentiated or frozenset(losses if len(losses) == 1 else ())
            if compiler.is_alone:
                learn = [isinstance(result, torch.Tensor) and result.requires_grad for result in results]
                compiler.beside = [i for i, learns in enumerate(learn) if learns and i not in compiler.differentiated]
                results = tuple([result.detach() if i in compiler.beside else result for i, result in enumerate(results)])
            if not runs:
                compiler.otherwise = histories.otherwise(inputs, results)
                compiler.in_written = histories.in_written(inputs, results)
                compiler.expanded = histories.expanded(inputs)
                compiler.written_unseen = histories.written_unseen(inputs, before)
            runs += 1
            return results

        return run

    with patched(*compat.MODULE_AS_FUNCTION, looked_at):
        yield


def _is_loss(result: Any) -> bool:
    return isinstance(result, torch.Tensor) and result.dim() == 0 and result.requires_grad


def as_traced(given: Any) -> Any:
    """A parameter that has a gradient of another size, as FSDP1's flat ones have between two steps, and a view of such a one,
    without that gradient: a trace would make fakes of both."""
    if not isinstance(given, torch.Tensor):
        return given
    leaf = compat.base_of(given) if compat.is_view(given) else given
    if not leaf.is_leaf or leaf.grad is None or leaf.grad.shape == leaf.shape:
        return given
    return given.detach().requires_grad_(given.requires_grad)


def _unwatched(work: Callable[..., Any]) -> Callable[..., Any]:
    """What comes after the trace is not the program's doing."""

    def run(*args: Any, **kwargs: Any) -> Any:
        with suspended():
            return work(*args, **kwargs)

    return run


__all__ = ["Compiler", "aot_settings", "compile_flat"]
