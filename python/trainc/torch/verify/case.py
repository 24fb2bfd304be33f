"""A graph with its inputs and its random numbers: what can be compiled and run again by itself, here or from a file."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import operator
import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from trainc.base import config
from trainc.base.step_graph import GraphText
from trainc.torch.device import HOST, Host
from trainc.torch.graph import wire
from trainc.torch.graph.captured import captured
from trainc.torch.run.core import Core
from trainc.torch.run.executable import operation
from trainc.torch.strided import span
from trainc.torch.verify.bounds import Distance
from trainc.torch.verify.oracle import Oracle
from trainc.torch.verify.program import Draws

Tensor = torch.Tensor


@dataclasses.dataclass
class Case:
    """`kind`: "inference", one plan for the whole graph; or "joint", a forward and a backward."""

    kind: str
    name: str
    graph: torch.fx.GraphModule
    inputs: list[Any]
    tangents: list[Any]
    outputs: int  # of the forward
    draws: Draws
    device: Host = HOST
    tune: str = "fast"

    @property
    def results(self) -> list[Any]:
        """The nodes of the outputs, then of the gradients."""
        return list(next(iter(self.graph.graph.find_nodes(op="output"))).args[0])

    def result_name(self, place: int) -> str:
        """In a message: what gives it, and where."""
        node = self.results[place]
        line = wire.origin(node)
        what = wire.target_name(node.target) if node.op == "call_function" else f"input {node.name}"
        return f"what {what} gives{f' at {line}' if line else ''}"

    def oracle(self) -> Oracle:
        return Oracle(self.graph.graph.nodes, self.values, self.results, self.device, self.draws)

    @property
    def values(self) -> list[Any]:
        return [*self.inputs, *self._tangents_or_zeros()]

    def distances(self) -> list[tuple[int, Distance]]:
        """Of what the compiler makes of it, output by output."""
        return self.oracle().distances(self.compiled())

    def compiled(self) -> list[Any]:
        """What the plans give, compiled anew: nothing is taken from the cache, nor put there."""
        with self.device.generator_at(self.draws.state), torch.no_grad(), without_cache():
            return self._joint() if self.kind == "joint" else self._inference()

    def _inference(self) -> list[Any]:
        step = captured("inference", self.graph, self.name, self.device, len(self.values), len(self.results))
        return Core(self.device, self.tune).inference(step)(self.values)

    def _joint(self) -> list[Any]:
        step = captured("joint", self.graph, self.name, self.device, len(self.inputs), self.outputs)
        joint = Core(self.device, self.tune).joint(step)
        arena = torch.empty(max(joint.saved_bytes, 1), dtype=torch.uint8, device=self.device.torch)
        results = joint.forward(self.inputs, arena)
        if joint.deferred_outputs:
            for i, value in zip(joint.deferred_outputs, joint.deferred()([], arena), strict=True):
                results[i] = value
        count = len(self.inputs)
        kept = [self.inputs[i] if i < count else results[i - count] for i in joint.saved_inputs]
        if not self.tangents:
            return results
        if self.draws.late is not None:
            self.device.generator().set_state(self.draws.late)
        backward = joint.backward(tuple([t is not None for t in self.tangents]), False, [])
        return [*results, *backward([*kept, *self.tangents], arena)]

    def _tangents_or_zeros(self) -> list[Any]:
        nodes = list(self.graph.graph.find_nodes(op="placeholder"))[len(self.inputs) :]
        return [zeros_like(node) if given is None else given for node, given in zip(nodes, self.tangents, strict=True)]


def zeros_like(node: torch.fx.Node) -> Tensor:
    """For a tangent that is not there."""
    meta = node.meta["val"]
    return torch.zeros(meta.shape, dtype=meta.dtype, device=node.meta.get("device", meta.device))


@contextlib.contextmanager
def without_cache() -> Iterator[None]:
    before, config.cache = config.cache, False
    try:
        yield
    finally:
        config.cache = before


# ---- the graph as text ------------------------------------------------------------------------------------------------


def graph_of(text: GraphText, device: Host = HOST) -> torch.fx.GraphModule:
    """The graph that was written as `text` (graph/wire.py). Raises AttributeError where an operation is not known here."""
    graph, nodes = torch.fx.Graph(), {}
    for each in json.loads(text.text())["nodes"]:
        if each["op"] == "output":
            graph.output(tuple(_argument(arg, nodes) for arg in each["args"]))
            continue
        if each["op"] == "placeholder":
            node = graph.placeholder(each["name"])
        else:
            target = operator.getitem if each["target"] == "getitem" else operation(each["target"])
            args = tuple(_argument(arg, nodes) for arg in each["args"])
            kwargs = {key: _argument(arg, nodes) for key, arg in each["kwargs"].items()}
            node = graph.create_node("call_function", target, args, kwargs, each["name"])
            _remember(node, each)
        node.meta["val"], node.meta["device"] = _meta(each["val"]), device.torch
        nodes[each["name"]] = node
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def _remember(node: torch.fx.Node, told: dict) -> None:
    """What the wire says of an operation beside its arguments."""
    if line := re.fullmatch(r"(.*):(\d+)", told["origin"]):
        node.stack_trace = f'  File "{line[1]}", line {line[2]}, in forward\n'
    if told.get("late"):
        node.meta["partitioner_tag"] = "is_backward"
    node.meta[wire.LATE] = wire.late_names(told)
    if told["recompute"]:
        node.meta[wire.RECOMPUTE] = True


def _argument(arg: Any, nodes: dict[str, torch.fx.Node]) -> Any:
    if isinstance(arg, dict) and "n" in arg:
        return nodes[arg["n"].removesuffix(wire.LATE_NAME)]
    if isinstance(arg, list):
        return [_argument(item, nodes) for item in arg]
    return wire.parse_argument(arg, [])


def _meta(val: Any) -> Any:
    if isinstance(val, list):
        return [_meta(item) for item in val]
    if val is None:
        return None
    shape, stride, offset = val["shape"], val["stride"], val.get("offset", 0)
    dtype = wire.DTYPES.get(val["dtype"]) or getattr(torch, val["dtype"])
    whole = torch.empty(offset + span(shape, stride), dtype=dtype, device="meta")
    return whole.as_strided(shape, stride, offset)


def part(case: Case, inputs: Sequence[torch.fx.Node], nodes: Sequence[torch.fx.Node], outputs: Sequence[torch.fx.Node],
         values: Sequence[Any]) -> Case:  # fmt: skip
    """Some operations of a case's graph as a case of their own: of `inputs`, which have these values, giving `outputs`."""
    graph, copies = torch.fx.Graph(), {}
    for node in inputs:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta.update(node.meta)
    for node in nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in outputs))
    gm = torch.fx.GraphModule(torch.nn.Module(), graph)
    return Case("inference", case.name, gm, list(values), [], len(outputs), Draws(case.draws.state), case.device, case.tune)


__all__ = ["Case", "graph_of", "part", "without_cache", "zeros_like"]
