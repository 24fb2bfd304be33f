"""Programs as deep as they come: no part of the compiler recurses along the graph, and its time grows as the graph does."""

import gc
import json
import threading
import time

import pytest

from trainc import _core
from trainc.base.options import CompileOptions
from trainc.torch.device import HOST

BATCH, WIDTH = 4, 8


class Joint:
    """A joint graph: `depth` layers and their backward, written as AOTAutograd would."""

    def __init__(self, *weights: str):
        self.nodes = [self._input(name) for name in ("x", *weights)]
        self._weights = len(weights)

    def _input(self, name: str) -> dict:
        shape = [WIDTH, WIDTH] if name == "w" else [BATCH, WIDTH]
        return {"op": "placeholder", "name": name, "val": {"dtype": "f32", "shape": shape}}

    def tangent(self) -> str:
        self.nodes.insert(1 + self._weights, self._input("tangents"))
        return "tangents"

    def call(
        self, target: str, *args: object, shape: tuple[int, ...] = (BATCH, WIDTH), stride: tuple[int, ...] | None = None
    ) -> str:
        name = f"n{len(self.nodes)}"
        val = {"dtype": "f32", "shape": list(shape)} | ({"stride": list(stride)} if stride else {})
        given = [{"n": a} if isinstance(a, str) else a for a in args]
        self.nodes.append({"op": "call", "name": name, "target": target, "args": given, "kwargs": {}, "val": val})
        return name

    def compile(self, *outputs: str) -> list:
        nodes = [*self.nodes, {"op": "output", "args": [{"n": name} for name in outputs]}]
        graph = json.dumps({"name": "deep", "nodes": nodes})
        joint = _core.JointGraph(graph, 1 + self._weights, 1, "deep", CompileOptions.of(HOST).for_compiler(), 1 << 16)
        return [joint.forward(), joint.backward([True])]


def elementwise(depth: int) -> list:
    """tanh after tanh, each with its backward."""
    joint = Joint()
    gradient, values = joint.tangent(), ["x"]
    for _ in range(depth // 2):
        values.append(joint.call("aten.tanh.default", values[-1]))
    for value in reversed(values[1:]):
        gradient = joint.call("aten.tanh_backward.default", gradient, value)
    return joint.compile(values[-1], gradient)


def contractions(depth: int) -> list:
    """x @ w @ w ..., and their gradients."""
    joint = Joint("w")
    gradient, value = joint.tangent(), "x"
    turned = joint.call("aten.t.default", "w", shape=(WIDTH, WIDTH), stride=(1, WIDTH))
    for _ in range(depth // 2):
        value = joint.call("aten.tanh.default", joint.call("aten.mm.default", value, "w"))
    for _ in range(depth // 2):
        gradient = joint.call("aten.mm.default", gradient, turned)
    return joint.compile(value, gradient)


def between_contractions(depth: int) -> list:
    """A long way from one contraction to the next, of which the backward wants the end alone: the cut's paths are as long."""
    joint = Joint("w")
    gradient = joint.tangent()
    turned = joint.call("aten.t.default", "w", shape=(WIDTH, WIDTH), stride=(1, WIDTH))
    value = joint.call("aten.mm.default", "x", "w")
    for _ in range(depth):
        value = joint.call("aten.mul.Scalar", value, 1.0001)
    value = joint.call("aten.tanh.default", value)
    result = joint.call("aten.mm.default", value, "w")
    gradient = joint.call("aten.tanh_backward.default", joint.call("aten.mm.default", gradient, turned), value)
    return joint.compile(result, gradient)


def _in_small_stack(call, *args) -> tuple[list, float]:
    """The result and the thread's own seconds, in a thread with a stack of 1 MiB: what recurses along the graph dies there.

    The time of the process would count threads that an earlier test left, and a collection walks their objects, too.
    """
    found: list = []

    def run() -> None:
        start = time.thread_time()
        found.append((call(*args), time.thread_time() - start))

    before, collects = threading.stack_size(1 << 20), gc.isenabled()
    gc.disable()
    try:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    finally:
        threading.stack_size(before)
        if collects:
            gc.enable()
    assert found, "it raised"
    return found[0]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("program", "depth"), [(elementwise, 20_000), (contractions, 2_000), (between_contractions, 20_000)])
def test_deep_programs_compile_in_linear_time(program, depth: int) -> None:
    """Sixteen times as deep takes less than eighty times as long: caches make it forty where memory is slow, a part that grows as
    the square would make it 256."""
    _in_small_stack(program, depth // 64)  # what is done once
    _, short = _in_small_stack(program, depth // 16)
    limit = 16 * short * 5 + 0.5
    attempts = (_in_small_stack(program, depth)[1] for _ in range(3))  # a machine that others use is slow now and then
    assert any(long < limit for long in attempts)
