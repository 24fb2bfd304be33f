"""The two engines behind capture, with one interface.

`core` compiles (trainc._core); `interpreter` runs the graphs operation by operation in PyTorch: for tests of capture alone,
and in the place of `core` where it raises InternalError. Both give

    compile(gm, name)                        -> Executable
    joint(gm, primals, forward_outputs, name) -> Joint: .forward, .saved_inputs, .saved_bytes, .backward(defined)
    Executable(inputs, saved=None)           -> list of fresh tensors (or None, or an input itself); .report() -> dict
"""

from __future__ import annotations

import ctypes
import json
import time
from collections.abc import Sequence
from typing import Any

import torch

from trainc import messages, wire
from trainc.pool import Results

Tensors = Sequence[torch.Tensor | None]


# ---- core -----------------------------------------------------------------------------------------------------------


def tensor_at(pointer: int, dtype: str, shape: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
    """A tensor over memory that somebody else owns."""
    torch_dtype = wire.DTYPES[dtype]
    if 0 in shape:
        return torch.empty_strided(shape, stride, dtype=torch_dtype)
    span = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    block = (ctypes.c_char * (span * torch_dtype.itemsize)).from_address(pointer)
    return torch.frombuffer(block, dtype=torch_dtype).as_strided(shape, stride)


class CoreExecutable:
    def __init__(self, plan: Any):
        self.plan = plan
        self._inputs = [
            None if info is None else (i, wire.DTYPES[info[0]], tuple(info[1]), tuple(info[2]))
            for i, info in enumerate(plan.input_info)
        ]
        self._outputs = [
            None if info is None else info[3] if info[3] >= 0 else Results(wire.DTYPES[info[0]], info[1], info[2])
            for info in plan.output_info
        ]
        self._externs = {step: ExternCall(info) for step, info in plan.extern_info.items()}

    def __call__(self, inputs: Tensors, saved: torch.Tensor | None = None) -> list[torch.Tensor | None]:
        held, pointers = [], [0] * len(self._inputs)
        for expected in self._inputs:
            if expected is None:
                continue
            tensor = inputs[expected[0]]
            if tensor is None:
                continue
            tensor = as_compiled(tensor, *expected[1:])
            held.append(tensor)
            pointers[expected[0]] = tensor.data_ptr()
        outputs = [inputs[out] if type(out) is int else out and out.new() for out in self._outputs]
        self.plan.run(
            pointers,
            [out.data_ptr() if isinstance(kind, Results) else 0 for out, kind in zip(outputs, self._outputs, strict=True)],
            0 if saved is None else saved.data_ptr(),
            get_rng_state,
            set_rng_state,
            self._extern,
        )
        return outputs

    def _extern(self, step: int, pointers: list[int]) -> list[tuple[int, Any]]:
        return self._externs[step](pointers)

    def report(self) -> dict:
        return json.loads(self.plan.report())


def as_compiled(tensor: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...]) -> torch.Tensor:
    """`tensor` in the layout that was compiled; a copy where it has another (an expanded tangent)."""
    if tensor.stride() == stride and tensor.dtype == dtype and tensor.shape == shape and not tensor.is_neg():
        return tensor
    if tensor.dtype != dtype or tensor.shape != shape:
        raise RuntimeError(f"trainc: compiled for {dtype}{list(shape)}, called with {tensor.dtype}{list(tensor.shape)}")
    return torch.empty_strided(shape, stride, dtype=dtype).copy_(tensor)


def get_rng_state() -> bytes:
    return torch.get_rng_state().numpy().tobytes()


def set_rng_state(state: bytes) -> None:
    torch.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))


class ExternCall:
    """An operation that PyTorch runs inside a plan."""

    def __init__(self, info: dict):
        self.info = info
        self._results = info["results"]
        arguments = info["arguments"]
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
        self._args, self._kwargs = arguments.get("args", []), arguments.get("kwargs", {})
        packet, overload = info["target"].removeprefix("aten.").rsplit(".", 1) if info["target"].startswith("aten.") else ("", "")
        self._op = getattr(getattr(torch.ops.aten, packet), overload) if packet else operation(info["target"])

    @torch.no_grad()
    def __call__(self, pointers: list[int]) -> list[tuple[int, Any]]:
        inputs = [tensor_at(p, *info) for p, info in zip(pointers, self.info["inputs"], strict=True)]
        args = wire.parse_argument(self._args, inputs)
        kwargs = {key: wire.parse_argument(arg, inputs) for key, arg in self._kwargs.items()}
        results = self._op(*args, **kwargs)
        results = list(results) if isinstance(results, (list, tuple)) else [results]
        owned = []
        for i, wanted in enumerate(self._results):
            if wanted is None or results[i] is None:
                owned.append((0, None))
                continue
            result = as_compiled(results[i], wire.DTYPES[wanted[0]], tuple(wanted[1]), tuple(wanted[2]))
            # the plan reads through the pointer; inputs are owned by the plan, so a view of one needs no owner but itself
            owned.append((result.data_ptr(), (result, inputs)))
        return owned


def operation(name: str) -> Any:
    namespace, packet, *overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload[0] if overload else "default")


class CoreJoint:
    def __init__(self, gm: torch.fx.GraphModule, primals: int, forward_outputs: int, name: str):
        from trainc import _core

        self.name = name
        with messages.progress(name) as progress:
            self._joint = _core.JointGraph(wire.graph_json(gm.graph, name), primals, forward_outputs, name, progress)
            self.forward = CoreExecutable(self._joint.forward(progress))
        self.saved_inputs: list[int] = list(self._joint.saved_inputs)
        self.saved_bytes: int = self._joint.saved_bytes

    def backward(self, defined: tuple[bool, ...]) -> CoreExecutable:
        with messages.progress(f"{self.name}, backward") as progress:
            return CoreExecutable(self._joint.backward(list(defined), progress))


class Core:
    name = "core"

    def compile(self, gm: torch.fx.GraphModule, name: str) -> CoreExecutable:
        from trainc import _core

        with messages.progress(name) as progress:
            return CoreExecutable(_core.compile(wire.graph_json(gm.graph, name), name, progress))

    def joint(self, gm: torch.fx.GraphModule, primals: int, forward_outputs: int, name: str) -> CoreJoint:
        return CoreJoint(gm, primals, forward_outputs, name)


# ---- interpreter ----------------------------------------------------------------------------------------------------


class InterpretedExecutable:
    def __init__(self, gm: torch.fx.GraphModule, name: str):
        self.gm, self.name = gm, name
        self.seconds = 0.0
        self._outputs = list(next(iter(gm.graph.find_nodes(op="output"))).args[0])

    def __call__(self, inputs: Tensors, saved: torch.Tensor | None = None) -> list[torch.Tensor | None]:
        start = time.perf_counter()
        with torch.no_grad():
            results = list(torch.fx.Interpreter(self.gm).run(*inputs))
        self.seconds = time.perf_counter() - start
        return results

    def report(self) -> dict:
        calls = [node for node in self.gm.graph.nodes if node.op == "call_function"]
        steps = [{"name": wire.target_name(n.target), "kind": "extern", "origins": [wire.origin(n)]} for n in calls]
        return {"name": self.name, "cpu": "", "temp_bytes": 0, "saved_bytes": 0, "steps": steps, "notes": ["interpreted"]}


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
        return results[: self._user_outputs]


class InterpretedBackward(InterpretedExecutable):
    def __init__(self, gm: torch.fx.GraphModule, name: str, joint: InterpretedJoint):
        super().__init__(gm, name)
        self._joint = joint

    def __call__(self, inputs: Tensors, saved: torch.Tensor | None = None) -> list[torch.Tensor | None]:
        count = len(self._joint.saved_inputs)
        primals, tangents = iter(inputs[:count]), inputs[count:]
        values = [next(primals) if slot is None else view_in(saved, slot) for slot in self._joint.slots]
        zeros = [
            torch.zeros(meta.shape, dtype=meta.dtype) if tangent is None else tangent
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
    """Cut by PyTorch's own partitioner; what is saved lies in the arena as it does with the compiler."""

    def __init__(self, gm: torch.fx.GraphModule, primals: int, forward_outputs: int, name: str):
        from torch._functorch.partitioners import default_partition

        placeholders = list(gm.graph.find_nodes(op="placeholder"))
        names = [node.name for node in placeholders]
        self.name = name
        self.tangents = [node.meta["val"] for node in placeholders[primals:]]
        fake_inputs = [node.meta["val"] for node in placeholders]
        fw, bw = default_partition(gm, (fake_inputs[:primals], fake_inputs[primals:]), num_fwd_outputs=forward_outputs)
        saved = list(next(iter(fw.graph.find_nodes(op="output"))).args[0])[forward_outputs:]
        self.saved_inputs: list[int] = []
        self.slots: list[tuple[int, int, Any] | None] = []
        offset = 0
        for node in saved:
            if node.op == "placeholder":
                self.saved_inputs.append(names.index(node.name))
                self.slots.append(None)
                continue
            meta = node.meta["val"]
            span = 0 if 0 in meta.shape else 1 + sum((n - 1) * s for n, s in zip(meta.shape, meta.stride(), strict=True))
            self.slots.append((offset, span * meta.dtype.itemsize, meta))
            offset += (span * meta.dtype.itemsize + 63) // 64 * 64
        self.saved_bytes = offset
        self.forward = InterpretedForward(fw, name, forward_outputs, self.slots)
        self._backward = InterpretedBackward(bw, f"{name}, backward", self)
        # every tangent is an argument, in order, also those that the partitioner found unused
        _complete_placeholders(bw, [node.name for node in saved], placeholders[primals:])

    def backward(self, defined: tuple[bool, ...]) -> InterpretedBackward:
        return self._backward


def _complete_placeholders(bw: torch.fx.GraphModule, saved: list[str], tangents: list[torch.fx.Node]) -> None:
    graph = bw.graph
    present = {node.name: node for node in graph.find_nodes(op="placeholder")}
    first = next(iter(graph.nodes))
    order = []
    for name in [*saved, *(node.name for node in tangents)]:
        if name not in present:
            with graph.inserting_before(first):
                present[name] = graph.placeholder(name)
        order.append(present[name])
    for node in reversed(order):  # to the front, in the calling order
        next(iter(graph.nodes)).prepend(node)
    for node in reversed(list(graph.nodes)):  # the partitioner keeps random operations alive: they would draw again
        if node.op == "call_function" and not node.users:
            graph.erase_node(node)
    bw.recompile()


class Interpreter:
    name = "interpreter"

    def compile(self, gm: torch.fx.GraphModule, name: str) -> InterpretedExecutable:
        return InterpretedExecutable(gm, name)

    def joint(self, gm: torch.fx.GraphModule, primals: int, forward_outputs: int, name: str) -> InterpretedJoint:
        return InterpretedJoint(gm, primals, forward_outputs, name)


ENGINES = {"core": Core, "interpreter": Interpreter}
