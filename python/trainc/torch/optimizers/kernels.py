"""The kernels of an optimizer's step: one for each variant of its formula, compiled when first needed."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from typing import Any

import torch

from trainc.base import cache, messages, records
from trainc.base.arithmetic import flushes_denormals
from trainc.base.errors import InternalError
from trainc.base.options import CompileOptions
from trainc.torch import compat, device
from trainc.torch.compat import make_fx
from trainc.torch.graph import wire
from trainc.torch.graph.captured import captured
from trainc.torch.optimizers import Variant
from trainc.torch.optimizers.state import GroupGuard, Numbers
from trainc.torch.run.core import Core
from trainc.torch.run.runner import Runners

Tensor = torch.Tensor

ELEMENTS = 1024  # of the tensors that a formula is traced with; the kernel takes any number


@functools.cache
def trace_formula(v: Variant, gradient: torch.dtype | None = None) -> torch.fx.GraphModule:
    """The update as a graph, for whoever only reads it. `gradient`: its dtype, where it is not the parameter's."""
    shape = (ELEMENTS,) if v.shape is None else v.shape
    shapes = [shape, shape, *v.formula.shapes(v, shape), *(() for _ in v.scalars)]
    with compat.FakeTensorMode():
        inputs = [torch.empty(shape, dtype=v.dtype, device="cpu") for shape in shapes]
        if gradient is not None:
            inputs[1] = inputs[1].to(gradient)
        return make_fx(lambda *args: v.update(args[0], args[1].to(v.dtype), *args[2:]))(*inputs)


class CoreKernel:
    def __init__(self, v: Variant, name: str, where: device.Host):
        from trainc import _core

        gm, in_place = trace_formula(v), v.in_place
        self.elements = 0  # that the last step updated
        self._name, self._where, on = name, where, where.target()["device"]
        options = CompileOptions.of(where)
        self._operations = sum(n.meta["val"].dim() for n in gm.graph.nodes if n.op == "call_function")
        self._moved = (v.tensors + len(in_place)) * v.dtype.itemsize
        with messages.progress(name):
            graph = wire.graph_json(gm.graph, name)
            (self._foreach, self.from_cache), _ = cache.through(
                cache.key("foreach", options, graph, in_place, name),
                lambda _, plan: (_core.load_foreach(plan, on), True),
                lambda: (_core.compile_foreach(graph, in_place, name, options.for_compiler(), on), False),
                lambda made: ({}, made[0].save()),
            )

    def start_step(self) -> None:
        self.elements = 0
        self._foreach.forget_time()

    def run(self, tensors: list[Sequence[Tensor]], scalars: list[float]) -> bool:
        """False, and nothing is done, where a tensor that is written shares memory with another."""
        numels = [row[0].numel() for row in tensors]
        self.elements += sum(numels)
        pointers = [[t.data_ptr() for t in row] for row in tensors]
        try:
            with compat.span(self._name):
                return self._foreach.run(pointers, numels, scalars, self._where.stream())
        except InternalError:
            for row in tensors:
                device.refuse_freed(row)
            raise

    def report(self) -> dict:
        report = json.loads(self._foreach.report())
        step = {
            "name": report["name"], "kind": "kernel", "flops": self.elements * self._operations,
            "bytes": self.elements * self._moved, "origins": [], "code": report["code"],
            "seconds": report["time"]["seconds"], "time": report["time"],
        }  # fmt: skip
        return {**report, "from_cache": self.from_cache, "steps": [step] if self.elements else []}


class _RowKernel:
    """One parameter after the other, as PyTorch does: what `update` gives is copied to where it belongs."""

    def __init__(self, v: Variant, where: torch.device, update: Callable[[list[Tensor]], Sequence[Tensor]]):
        self.elements = 0  # that the last step updated
        self._variant, self._where, self._update = v, where, update

    def start_step(self) -> None:
        self.elements = 0

    def run(self, tensors: list[Sequence[Tensor]], scalars: list[float]) -> bool:
        numbers = [torch.tensor(value, dtype=self._variant.dtype, device=self._where) for value in scalars]
        for row in tensors:
            self.elements += row[0].numel()
            for place, result in zip(self._variant.in_place, self._update([*row, *numbers]), strict=True):
                row[place].copy_(result)
        return True


class ShapedKernel(_RowKernel):
    """A formula that is not elementwise: a plan for parameters of one shape."""

    def __init__(self, v: Variant, name: str, where: device.Host):
        formula = trace_formula(v)
        self._plan = Core(where).inference(captured("inference", formula, name, where))
        self._rows = 0  # parameters that the last step updated
        self._seconds: list[float] = []  # by step of the plan, of all of them, where it is timed
        super().__init__(v, where.torch, self._row)

    @property
    def from_cache(self) -> bool:
        return self._plan.from_cache

    def start_step(self) -> None:
        super().start_step()
        self._rows, self._seconds = 0, []

    def _row(self, tensors: list[Tensor]) -> Sequence[Tensor]:
        results = self._plan(tensors)
        self._rows += 1
        if self._plan.plan.profile:
            spent = [step["seconds"] for step in self._plan.report()["steps"]]
            self._seconds = [a + b for a, b in zip(self._seconds or [0.0] * len(spent), spent, strict=True)]
        return results

    def report(self) -> dict:
        report = self._plan.report()
        for i, step in enumerate(report["steps"]):
            step |= {"flops": step["flops"] * self._rows, "bytes": step["bytes"] * self._rows}
            if self._seconds:
                step["seconds"] = self._seconds[i]
        return report


class InterpretedKernel(_RowKernel):
    """The formula's own Python."""

    def __init__(self, v: Variant, name: str, _where: device.Host):
        super().__init__(v, torch.device("cpu"), lambda tensors: v.update(*tensors))
        self._name = name

    def report(self) -> dict:
        return {"name": self._name, "steps": [], "temp_bytes": 0, "saved_bytes": 0, "notes": ["interpreted"]}


class Kernels:
    """The kernels of one optimizer, by variant, device and arithmetic, compiled when first needed."""

    def __init__(self, optimizer: torch.optim.Optimizer):
        self._kernels: dict[tuple[Variant, device.Host, bool], Any] = {}
        self.known: dict[int, GroupGuard] = {}  # by group: what all went into kernels
        self._records = records.of(optimizer)
        self.numbers = Numbers()

    def start_step(self) -> None:
        for kernel in self._kernels.values():
            kernel.start_step()

    def get(self, v: Variant, like: Tensor) -> Any:
        """The kernel for tensors that lie where `like` does."""
        where = device.get(like.device)
        key = (v, where, flushes_denormals())
        kernel = self._kernels.get(key)
        if kernel is None:
            kernel = self._kernels[key] = self._build(v, where)
        return kernel

    def _build(self, v: Variant, where: device.Host) -> Any:
        name = f"{v.formula.title(v)} step"
        record = records.Compilation(name)
        compiled = CoreKernel if v.formula.elementwise else ShapedKernel
        kernel = record.optimizer = Runners(where).make(
            record, lambda runner: (compiled if runner.name == "core" else InterpretedKernel)(v, name, where)
        )
        self._records.append(record)
        messages.info(f"{name}: compiled or found in the cache in {record.compile_seconds:.2f} s")
        return kernel


__all__ = ["Kernels", "trace_formula"]
