"""Numbers in a traced graph: elements of one input."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx.node import map_aggregate

from trainc.torch.numbers.node import Id, Node
from trainc.torch.numbers.program import Program

aten = torch.ops.aten

# Operations that take a number as they take a tensor without dimensions: (the operation with tensors, its operands' order).
_AS_TENSOR = {
    **{getattr(aten, name).Tensor: (getattr(aten, name).Tensor, (0, 1)) for name in ("add", "sub", "mul", "div")},
    **{getattr(aten, name).Scalar: (getattr(aten, name).Tensor, (0, 1)) for name in ("mul", "div")},
    **{getattr(aten, name).Scalar: (getattr(aten, name).Tensor, (0, 1)) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    aten.rsub.Scalar: (aten.sub.Tensor, (1, 0)),
}


def id_of(arg: Any) -> Id | None:
    """Which number this is, of a graph's argument."""
    return arg.node.id if isinstance(arg, torch.SymFloat) and isinstance(arg.node, Node) else None


def put_in(
    program: Program, graph: torch.fx.Graph, node: torch.fx.Node, args: tuple, kwargs: dict, vector: torch.fx.Node
) -> tuple[Any, tuple]:
    """(operation, args) of `node` with elements of the graph's input `vector` where numbers were. `args`: of the new graph."""
    here = [i for i, arg in enumerate(args) if id_of(arg) is not None]
    everywhere: list[Any] = []
    map_aggregate((args, kwargs), lambda arg: everywhere.append(arg) if id_of(arg) is not None else None)
    target, order = _AS_TENSOR.get(node.target, (None, ()))
    fits = target is not None and len(here) == len(everywhere) == 1 and len(args) == 2 and here[0] < 2
    other = args[1 - here[0]] if fits else None
    if not isinstance(other, torch.fx.Node) or (node.target is aten.rsub.Scalar and kwargs):
        return _refused(program, everywhere)
    if other.meta.get("device", torch.device("cpu")).type != "cpu":  # the input lies in the host's memory
        return _refused(program, everywhere)
    i = program.place(args[here[0]].node.id)
    like, double = other.meta["val"], torch.empty((), dtype=torch.float64, device="meta")
    wanted = torch.result_type(like, 1.0)
    element = _made(graph, aten.select.int, (vector, 0, i), {}, double)
    if torch.result_type(like, double) is not wanted:  # a number takes the other side's type, a tensor may give it its own
        if wanted not in (torch.float32, torch.float64):
            return _refused(program, everywhere)
        element = _made(graph, aten._to_copy.default, (element,), {"dtype": wanted}, torch.empty((), dtype=wanted, device="meta"))
        if torch.result_type(like, element.meta["val"]) is not wanted:
            return _refused(program, everywhere)
    operands = [element if i == here[0] else arg for i, arg in enumerate(args)]
    return target, tuple([operands[i] for i in order])


def _refused(program: Program, numbers: list[Any]) -> Any:
    program.take(*map(id_of, numbers))
    program.check_constants()


def _made(graph: torch.fx.Graph, target: Any, args: tuple, kwargs: dict, value: torch.Tensor) -> torch.fx.Node:
    node = graph.create_node("call_function", target, args, kwargs)
    node.meta = {"val": value, "device": torch.device("cpu")}
    return node


__all__ = ["id_of", "put_in"]
