"""Which operation is at fault: the first of a graph whose own result is not PyTorch's when the graph ends with it.

The graph is cut after its first k operations, and what the rest would read is compiled and compared. Where k operations part
from PyTorch, more of them do: so k is found by halving, with as many compiles as the number of operations has binary digits.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Sequence
from typing import Any

import torch

from trainc.torch.graph import wire
from trainc.torch.verify import program
from trainc.torch.verify.bounds import Distance
from trainc.torch.verify.case import Case, part
from trainc.torch.verify.oracle import parted

Node = torch.fx.Node


@dataclasses.dataclass(frozen=True)
class Found:
    """The smallest part of a case that parts from PyTorch when it is compiled by itself; `case` is None where none does. `first`:
    the graph parts with this operation; else it is what gives the wrong result, and only the plans of the whole part."""

    first: bool
    operation: str
    line: str  # the user's own, or ""
    case: Case | None
    distance: Distance | None


def locate(case: Case, output: int) -> Found:
    """`output`: the result of `case`, by its place, that is not PyTorch's."""
    wrong = case.results[output]
    cone = _cone(wrong)
    whole = _difference(_prefix(case, cone, len(cone), wrong))
    if whole is None:  # not where the graph is one plan: forward and backward, or who gives memory to them, is at fault
        found = _difference(case) if case.kind == "joint" else None
        return _named(False, wrong, *(found or (None, None)))
    low, high, smallest = 0, len(cone), whole  # `low` operations agree, `high` part
    while high - low > 1:
        middle = (low + high) // 2
        if found := _difference(_prefix(case, cone, middle, wrong)):
            high, smallest = middle, found
        else:
            low = middle
    node = cone[high - 1]
    alone = _difference(_alone(case, node))
    return _named(True, node, *(alone or smallest))


def _named(first: bool, node: Node, case: Case | None, distance: Distance | None) -> Found:
    while node.target is operator.getitem:
        node = node.args[0]
    name = "an input" if node.op == "placeholder" else wire.target_name(node.target)
    return Found(first, name, wire.origin(node), case, distance)


def _difference(case: Case | None) -> tuple[Case, Distance] | None:
    """The case, and how far it lies, where it parts from PyTorch."""
    if case is None:
        return None
    try:
        found = parted(case.distances())
    except Exception:  # a part that cannot be compiled by itself tells nothing
        return None
    return (case, found[1]) if found else None


def _cone(output: Node) -> list[Node]:
    """The operations that `output` is made by, in the graph's order."""
    needed = {output}
    for node in reversed(list(output.graph.nodes)):
        if node in needed:
            needed.update(node.all_input_nodes)
    return [node for node in output.graph.nodes if node in needed and node.op == "call_function" and not _is_element(node)]


def _is_element(node: Node) -> bool:
    """One of several results: it comes with the operation that gives them."""
    return node.target is operator.getitem


def _prefix(case: Case, cone: Sequence[Node], count: int, wrong: Node) -> Case | None:
    """The first `count` operations, giving what the others read of them (and `wrong`)."""
    inside = set(cone[:count])
    nodes = [n for n in case.graph.graph.nodes if n in inside or _is_element(n) and _source(n) in inside]
    inside.update(nodes)
    later = {*cone[count:]}
    given = [n for n in nodes if _is_tensor(n) and (n is wrong or any(user in later for user in n.users))]
    inputs = list(case.graph.graph.find_nodes(op="placeholder"))
    return part(case, inputs, nodes, given, case.values) if given else None


def _alone(case: Case, node: Node) -> Case | None:
    """One operation, of the values that PyTorch gives to it."""
    if program.draws(node):
        return None
    results = [node] if _is_tensor(node) else [user for user in node.users if _is_element(user)]
    inputs = list(dict.fromkeys(node.all_input_nodes))
    if not all(map(_is_tensor, inputs)) or not results:
        return None
    with case.device.generator_at(case.draws.state):
        values = program.run(case.graph.graph.nodes, case.values, inputs, case.device, case.draws)
    return part(case, inputs, [node, *[n for n in results if n is not node]], results, _copies(values))


def _copies(values: Sequence[Any]) -> list[Any]:
    return [value.clone() for value in values]


def _source(node: Node) -> Node:
    while _is_element(node):
        node = node.args[0]
    return node


def _is_tensor(node: Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


__all__ = ["Found", "locate"]
