"""Where both doors meet: AOTAutograd's joint graph in, a forward and a backward of one opaque call each out.

The forward returns (the user's outputs..., saved primals..., arena). The arena is one uint8 tensor with all that the plan
saves, an ordinary saved tensor to autograd, which thereby owns its lifetime; the backward reads it and frees nothing. The
primals are saved as they are, or autograd would not see that a weight was changed in between.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch._functorch.aot_autograd  # first: the modules below import each other
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd import runtime_wrappers

from trainc import config, engine, messages, wire
from trainc.deferred import Pending
from trainc.device import Host
from trainc.errors import UserError
from trainc.memory import Limit
from trainc.pool import Pool
from trainc.records import Compilation
from trainc.trace import recurrent_layers

_HALF = "trainc_half"


class Compiler:
    """The partitioner and the compilers that one capture hands to AOTAutograd, with the record that they fill."""

    def __init__(self, record: Compilation, device: Host, limit: Limit | None = None):
        self.record, self.device, self.limit = record, device, limit
        self.engine = engine.ENGINES[config.engine_name()](device, record.tune)
        record.engine = self.engine.name

    # -- the partitioner ----------------------------------------------------------------------------------------------

    def partition(
        self, gm: torch.fx.GraphModule, joint_inputs: Any, *, num_fwd_outputs: int, **_: Any
    ) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
        wire.give_backward_its_lines(gm.graph)
        placeholders = list(gm.graph.find_nodes(op="placeholder"))
        primals = [node for node in placeholders if not node.name.startswith("tangents")]
        tangents = placeholders[len(primals) :]
        outputs = list(next(iter(gm.graph.find_nodes(op="output"))).args[0])
        forward_outputs, gradients = outputs[:num_fwd_outputs], outputs[num_fwd_outputs:]

        constants = lift_constants(gm, before=tangents[0] if tangents else None)
        count = len(primals) + len(constants)
        _set_outputs(gm, [*outputs, *[None] * len(constants)])
        joint = self._build(lambda e: e.joint(gm, count, num_fwd_outputs, self.record.name, self.limit))
        self.record.forward, self.record.footprint = joint.forward, joint.footprint
        # What the backward reads of what the caller holds: primals, and (from `count` on) results of the forward.
        held = [i for i in joint.saved_inputs if not len(primals) <= i < count]
        saved = [primals[i] if i < count else forward_outputs[i - count] for i in held]
        pool = Pool(max(joint.saved_bytes, 1), self.device)

        pending = Pending()
        deferred_metas = [forward_outputs[i].meta["val"] for i in joint.deferred_outputs]
        self.record.deferred_bytes = sum(meta.numel() * meta.itemsize for meta in deferred_metas)

        def run_forward(*inputs: torch.Tensor) -> list[Any]:
            pending.settle()  # or their arena could not be used again
            arena = torch.empty(0, dtype=torch.uint8, device=self.device.torch).set_(pool.take(), 0, (pool.size,), (1,))
            results = joint.forward([*inputs, *constants], arena)
            if deferred_metas:
                tensors = pending.tensors(deferred_metas, lambda: self._deferred(joint)([], arena))
                for i, tensor in zip(joint.deferred_outputs, tensors, strict=True):
                    results[i] = tensor
            return [*results, arena]

        def run_backward(*inputs: torch.Tensor | None) -> list[Any]:
            if torch.is_autocast_enabled(self.device.type):
                messages.warn_once("autocast", AUTOCAST_BACKWARD)
            arena, given = inputs[len(saved)], inputs[len(saved) + 1 :]
            values = iter(inputs)
            kept = [constants[i - len(primals)] if len(primals) <= i < count else next(values) for i in joint.saved_inputs]
            # Somebody may read the arena again: deferred outputs, or (retain_graph) another backward.
            again = pending.alive() or torch._C._autograd._get_current_graph_task_keep_graph()
            backward = self._backward(joint, tuple(tangent is not None for tangent in given), consumes=not again)
            return backward([*kept, *given], arena)[: len(primals)]

        with _fake_mode_of(primals + tangents):
            arena_meta = torch.empty(pool.size, dtype=torch.uint8, device=self.device.torch)
        forward = _opaque("trainc_forward", run_forward, primals, forward_outputs, held, count, arena_meta)
        backward = _opaque_backward("trainc_backward", run_backward, saved, arena_meta, tangents, gradients)
        return forward, backward

    def _backward(self, joint: Any, defined: tuple[bool, ...], consumes: bool) -> Callable[..., list[Any]]:
        """The backward for the tangents that exist, compiled when it is first needed. `consumes`: it may overwrite the arena."""
        there = self.record.backward if consumes else self.record.keeping
        found = there.get(defined)
        if found is None:
            found = there[defined] = self._build(lambda _: joint.backward(defined, consumes))
        return found

    def _deferred(self, joint: Any) -> Callable[..., list[Any]]:
        """What makes the deferred outputs, compiled when one is first read."""
        if self.record.deferred is None:
            self.record.deferred = self._build(lambda _: joint.deferred())
        return self.record.deferred

    def _build(self, build: Callable[[Any], Any]) -> Any:
        """`build` with the engine; with the interpreter, and one warning, where trainc fails by a fault of its own."""
        start = time.perf_counter()
        try:
            return build(self.engine)
        except UserError:
            raise
        except Exception as error:
            if self.engine.name == "interpreter":
                raise
            messages.fell_back(self.record.name, error)
            self.engine = engine.Interpreter(self.device, self.record.tune)
            self.record.engine, self.record.reason = self.engine.name, str(error)
            return build(self.engine)
        finally:
            self.record.compile_seconds += time.perf_counter() - start

    # -- the compilers ------------------------------------------------------------------------------------------------

    def half(self, gm: torch.fx.GraphModule, _inputs: Sequence[Any]) -> Callable[[list[Any]], Any]:
        """Forward and backward: the opaque call itself, without the FX module around it."""
        return next(_boxed(getattr(n.target, _HALF)) for n in gm.graph.nodes if hasattr(n.target, _HALF))

    def inference(self, gm: torch.fx.GraphModule, _inputs: Sequence[Any]) -> Callable[[list[Any]], Any]:
        constants = lift_constants(gm, before=None)
        executable = self._build(lambda e: e.compile(gm, self.record.name))
        self.record.forward = executable
        return _boxed(lambda *inputs: executable([*inputs, *constants]))


AUTOCAST_BACKWARD = (
    "backward() was called inside torch.autocast; the compiled backward computes each gradient in the type its forward had, "
    "as backward() outside autocast does. Call backward() outside the autocast block."
)


def _boxed(call: Callable[..., Any]) -> Callable[[list[Any]], Any]:
    def run(args: list[Any]) -> Any:
        inputs = tuple(args)
        args.clear()
        return call(*inputs)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def lift_constants(gm: torch.fx.GraphModule, before: torch.fx.Node | None) -> list[torch.Tensor]:
    """Turns tensors that the graph holds (`torch.tensor(0.5)` in a forward) into inputs after the primals; returns them."""
    graph, constants = gm.graph, []
    for node in list(graph.nodes):
        if node.op != "get_attr":
            continue
        tensor = getattr(gm, node.target)
        if tensor.dim() == 0 and not tensor.is_complex():  # a number that Python wrote: part of the code, not an input
            with graph.inserting_before(node):
                number = graph.call_function(torch.ops.aten.full.default, ([], tensor.item()), {"dtype": tensor.dtype})
            number.meta.update(node.meta, val=_fake_like(graph, tensor))
            node.replace_all_uses_with(number)
            graph.erase_node(node)
            continue
        first_call = next(n for n in graph.nodes if n.op != "placeholder")
        with graph.inserting_before(before or first_call):
            lifted = graph.placeholder(f"constant_{len(constants)}")
        lifted.meta["val"] = _fake_like(graph, tensor)
        node.replace_all_uses_with(lifted)
        graph.erase_node(node)
        constants.append(tensor)
    return constants


def _fake_like(graph: torch.fx.Graph, tensor: torch.Tensor) -> torch.Tensor:
    with _fake_mode_of(list(graph.find_nodes(op="placeholder"))):
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)


def _set_outputs(gm: torch.fx.GraphModule, outputs: list[Any]) -> None:
    output = next(iter(gm.graph.find_nodes(op="output")))
    output.args = (tuple(outputs),)


def _fake_mode_of(nodes: Sequence[torch.fx.Node]) -> contextlib.AbstractContextManager:
    values = (node.meta.get("val") for node in nodes)
    fakes = (value for value in values if isinstance(value, torch._subclasses.FakeTensor))
    fake = next(fakes, None)
    return fake.fake_mode if fake is not None else torch._subclasses.FakeTensorMode()


def _callable_named(name: str, run: Callable[..., Any]) -> Callable[..., Any]:
    def call(*inputs: Any) -> Any:
        return run(*inputs)

    call.__name__ = call.__qualname__ = name
    setattr(call, _HALF, run)
    return call


def _opaque(name, run, primals, outputs, held, count, arena_meta) -> torch.fx.GraphModule:
    """(user outputs..., saved primals and outputs..., arena) of the primals; `held`: a primal, or `count` + an output."""

    def forward(*inputs: Any) -> list[Any]:
        *results, arena = run(*inputs)
        return [*results, *(inputs[i] if i < count else results[i - count] for i in held), arena]

    graph = torch.fx.Graph()
    inputs = [_copy_placeholder(graph, node) for node in primals]
    call = graph.call_function(_callable_named(name, forward), tuple(inputs))
    results = [_result(graph, call, i, out) for i, out in enumerate(outputs)]
    arena = graph.call_function(item_of, (call, len(outputs) + len(held)))
    arena.meta["val"] = arena_meta
    graph.output((*results, *(inputs[i] if i < count else results[i - count] for i in held), arena))
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
def aot_settings():
    """Backward without autocast's casts, no donated buffers, no cache of AOTAutograd's own; outputs that the loss does not
    use give the backward None instead of a tensor of zeros."""
    original = runtime_wrappers._codegen_compiled_forward

    def without_materialized_zeros(*args: Any, **kwargs: Any) -> Callable[..., Any]:
        forward = original(*args, **kwargs)

        def run(ctx: Any, *rest: Any) -> Any:
            outputs = forward(ctx, *rest)
            ctx.set_materialize_grads(False)
            return outputs

        return run

    settings = {"backward_pass_autocast": "off", "donated_buffer": False, "enable_autograd_cache": False, "debug_assert": False}
    with functorch_config.patch({key: value for key, value in settings.items() if hasattr(functorch_config, key)}):
        runtime_wrappers._codegen_compiled_forward = without_materialized_zeros
        try:
            yield
        finally:
            runtime_wrappers._codegen_compiled_forward = original


def compile_flat(
    module: torch.nn.Module, inputs: Sequence[Any], record: Compilation, device: Host, limit: Limit | None = None
) -> Callable[..., Sequence[Any]]:
    """Compiles `module(*inputs) -> tuple of tensors` for these inputs' shapes, all on `device`; returns the compiled call.
    UserError where the memory that `limit` allows is not enough."""
    from torch._functorch.aot_autograd import aot_module_simplified

    compiler = Compiler(record, device, limit)
    with aot_settings(), recurrent_layers():
        return aot_module_simplified(
            module,
            list(inputs),
            fw_compiler=compiler.half,
            bw_compiler=compiler.half,
            inference_compiler=compiler.inference,
            partition_fn=compiler.partition,
            decompositions=decompositions(),
        )


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Operations written out in simpler ones before capture; only where the result is the same to the last bit."""
    return {}


__all__ = ["Compiler", "aot_settings", "compile_flat", "lift_constants"]
