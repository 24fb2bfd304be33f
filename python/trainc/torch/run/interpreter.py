"""The runner that has PyTorch run graphs operation by operation: for tests of capture alone, and where the compiler fails."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from trainc.base.step_graph import NotChunked, StepGraph, Updates
from trainc.torch import compat
from trainc.torch.device import HOST, Host
from trainc.torch.graph import wire
from trainc.torch.run.executable import Tensors
from trainc.torch.strided import span


class InterpretedExecutable:
    aliases: Mapping[int, int] = {}  # PyTorch copies where the program does

    def __init__(self, gm: torch.fx.GraphModule, name: str):
        self.gm, self.name = gm, name
        self.seconds = 0.0
        self._outputs = list(next(iter(gm.graph.find_nodes(op="output"))).args[0])

    def __call__(self, inputs: Tensors, saved: torch.Tensor | None = None) -> list[torch.Tensor | None]:
        start = time.perf_counter()
        with torch.no_grad(), compat.DisableAutocast():  # the graph has the casts
            results = list(torch.fx.Interpreter(self.gm).run(*inputs))
        self.seconds = time.perf_counter() - start
        return results

    def share_memory(self, other: InterpretedExecutable) -> None:
        """Its results are PyTorch's own."""

    def report(self) -> dict:
        calls = [node for node in self.gm.graph.nodes if node.op == "call_function"]
        steps = [{"name": wire.target_name(n.target), "kind": "extern", "origins": [wire.origin(n)]} for n in calls]
        return {"name": self.name, "cpu": "", "temp_bytes": 0, "saved_bytes": 0, "steps": steps, "notes": ["interpreted"]}


def as_its_own(result: torch.Tensor | None) -> torch.Tensor | None:
    """What an operation made as a view of memory that nobody else has, so that it can be written as any other result."""
    return torch.ops.aten._unsafe_view(result, result.shape) if result is not None and compat.is_view(result) else result


class InterpretedForward(InterpretedExecutable):
    """Packs the values that the backward reads into the arena."""

    def __init__(self, gm: torch.fx.GraphModule, name: str, outputs: int, slots: list[tuple[int, int, Any] | None]):
        super().__init__(gm, name)
        self._user_outputs, self._slots = outputs, slots

    def __call__(self, inputs: Tensors, saved: torch.Tensor | None = None) -> list[torch.Tensor | None]:
        results = super().__call__(inputs)
        for result, slot in zip(results[self._user_outputs :], self._slots, strict=True):
            if slot is not None:
                view_in(saved, slot).copy_(result)
        theirs = set(map(id, inputs))
        return [result if id(result) in theirs else as_its_own(result) for result in results[: self._user_outputs]]


class InterpretedBackward(InterpretedExecutable):
    def __init__(self, gm: torch.fx.GraphModule, name: str, joint: InterpretedJoint):
        super().__init__(gm, name)
        self._joint = joint

    def __call__(self, inputs: Tensors, saved: torch.Tensor | None = None) -> list[torch.Tensor | None]:
        count = len(self._joint.saved_inputs)
        primals, tangents = iter(inputs[:count]), inputs[count:]
        values = [next(primals) if slot is None else view_in(saved, slot) for slot in self._joint.slots]
        zeros = [
            torch.zeros(meta.shape, dtype=meta.dtype, device=self._joint.device.torch) if tangent is None else tangent
            for tangent, meta in zip(tangents, self._joint.tangents, strict=True)
        ]
        results = super().__call__([*values, *zeros])
        # a gradient that is a saved value or a tangent as it is would share memory with it
        shared = {t.untyped_storage().data_ptr() for t in (*values, *inputs) if t is not None}
        return [r if r is None or r.untyped_storage().data_ptr() not in shared else r.clone() for r in results]


def view_in(arena: torch.Tensor, slot: tuple[int, int, Any]) -> torch.Tensor:
    offset, size, meta = slot
    return arena[offset : offset + size].view(meta.dtype).as_strided(meta.shape, meta.stride())


class InterpretedJoint:
    """The plainest cut: what needs no tangent is forward, but for what the backward draws or checks. What is saved lies in the
    arena, as it does with the compiler; views are made again in the backward, so that a weight is saved as itself and autograd
    sees when it changes."""

    fuses = False

    def __init__(
        self, gm: torch.fx.GraphModule, primals: int, forward_outputs: int, name: str, device: Host, kept: list[int] | None
    ):
        self.name, self.device = name, device
        nodes = list(gm.graph.nodes)
        inputs = [node for node in nodes if node.op == "placeholder"]
        self.tangents = [node.meta["val"] for node in inputs[primals:]]
        outputs = list(nodes[-1].args[0])
        backward = set(inputs[primals:])
        for node in nodes:
            if node.op == "call_function":
                if wire.acts_in_backward(node) or not backward.isdisjoint(node.all_input_nodes):
                    backward.add(node)
        saved, again = _crossing(nodes, outputs[forward_outputs:], backward)

        places = {node: i for i, node in enumerate(inputs) if kept is None or i in kept}
        saved.sort(key=lambda node: (node not in places, places.get(node, 0)))
        self.saved_inputs = [places[node] for node in saved if node in places]
        self.slots: list[tuple[int, int, Any] | None] = [None] * len(self.saved_inputs)
        offset = 0
        for node in saved[len(self.slots) :]:
            value = node.meta["val"]
            size = span(value.shape, value.stride()) * value.dtype.itemsize
            self.slots.append((offset, size, node.meta["val"]))
            offset += (size + 63) // 64 * 64
        self.saved_bytes = offset
        self.deferred_outputs: list[int] = []

        forward = [n for n in nodes if n.op == "call_function" and n not in backward]
        fw = _graph(inputs[:primals], forward, [*outputs[:forward_outputs], *saved])
        bw = _graph([*saved, *inputs[primals:]], [n for n in nodes if n in again or n in backward], outputs[forward_outputs:])
        self.forward = InterpretedForward(fw, name, forward_outputs, self.slots)
        self._backward = InterpretedBackward(bw, f"{name}, backward", self)

    def footprint(self) -> None:
        return None

    def deferred(self) -> InterpretedExecutable:
        raise AssertionError("nothing is deferred")

    def backward(self, defined: tuple[bool, ...], overwrites: bool, unmade: list[int]) -> InterpretedBackward:
        return self._backward

    def backward_step(self, defined: tuple[bool, ...], overwrites: bool, unmade: list[int], updates: Updates) -> Any:
        raise AssertionError("the backward and the optimizer's step run apart")


Nodes = list[torch.fx.Node]


def _crossing(nodes: Nodes, gradients: list[Any], backward: set[torch.fx.Node]) -> tuple[Nodes, set[torch.fx.Node]]:
    """(the forward values that the backward reads, the views of such values that it makes again)."""
    wanted = {n for n in gradients if isinstance(n, torch.fx.Node)}
    saved, again = [], set()
    for node in reversed(nodes):
        if node in backward:
            wanted.update(node.all_input_nodes)
        elif node in wanted and node.op != "output":
            is_tensor = isinstance(node.meta["val"], torch.Tensor)
            if is_tensor and getattr(node.target, "is_view", False) and len(node.all_input_nodes) == 1:
                again.add(node)
                wanted.update(node.all_input_nodes)
            else:
                saved.append(node)
    return saved, again


def _graph(inputs: Nodes, calls: Nodes, outputs: list[Any]) -> torch.fx.GraphModule:
    graph, copies = torch.fx.Graph(), {}
    for node in inputs:
        copies[node] = graph.placeholder(node.name)
    for node in calls:
        if node not in copies and node.op == "call_function":
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[out] if isinstance(out, torch.fx.Node) else out for out in outputs))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


class InterpretedStep:
    """The graph operation by operation, then the updates by their formulas."""

    def __init__(self, step: StepGraph):
        self._graph = InterpretedExecutable(step.program, step.name)
        self._first_gradient, self._updates = step.outputs, step.updates
        self.report = self._graph.report

    def __call__(
        self, inputs: Sequence[torch.Tensor], states: list[list[torch.Tensor]], scalars: list[list[float]]
    ) -> list[torch.Tensor | None]:
        outputs = self._graph(inputs)
        self._updates.run(inputs, outputs[self._first_gradient :], states, scalars)
        return outputs

    def share_memory(self, other: Any) -> None:
        """Its results are PyTorch's own."""

    def footprint(self) -> None:
        return None


class Interpreter:
    """PyTorch keeps what it keeps and shares no kernels: limits are not met, and nothing is deferred."""

    name = "interpreter"

    def __init__(self, device: Host = HOST, tune: str = "fast"):
        self.device = device  # there is nothing to tune

    def inference(self, step: StepGraph, shared: Any = None) -> InterpretedExecutable:
        return InterpretedExecutable(step.program, step.name)

    def joint(
        self, step: StepGraph, shared: Any = None, limit: Any = None, defer_small: bool = False, kept: list[int] | None = None
    ) -> InterpretedJoint:
        if step.whole is not None:
            raise NotChunked
        return InterpretedJoint(step.program, step.inputs, step.outputs, step.name, self.device, kept)

    def whole(self, step: StepGraph, shared: Any = None, limit: Any = None) -> InterpretedStep:
        return InterpretedStep(step)


__all__ = ["InterpretedExecutable", "Interpreter"]
