"""Inputs whose memory a program reads by places in their storage: `as_strided` with an offset counts from the start of the
storage, and another call's argument may begin elsewhere. A plan is for the beginnings that its trace had."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch

from trainc.torch.graph import wire
from trainc.torch.guards.overlap import Overlapping

_aten = torch.ops.aten
_OFFSET_AT = {_aten.as_strided.default: 3, _aten.as_strided_copy.default: 3, _aten.as_strided_scatter.default: 4}


class Elsewhere(Overlapping):
    """An input begins at another place of its storage than the plan's. Nothing has run yet."""


def beginnings(graph: torch.fx.Graph) -> dict[int, int]:
    """Such inputs, by index -> the place of the first element. The front end is told which ones are looked at (`begins`)."""
    found: dict[int, int] = {}
    placeholders = [node for node in graph.find_nodes(op="placeholder") if not node.name.startswith("tangents")]
    names = {node.name: node for node in graph.nodes}
    below = [
        node.args[0]
        for target, at in _OFFSET_AT.items()
        for node in graph.find_nodes(op="call_function", target=target)
        if node.kwargs.get("storage_offset", node.args[at] if len(node.args) > at else None) is not None
    ]
    while below:
        node: Any = below.pop()
        if node.op == "call_function":
            below += [node.args[0]] if node.target is operator.getitem else [names[name] for name in wire.aliases(node)]
            continue
        value = node.meta.get("val")
        if node in placeholders and not value.dtype.is_complex and type(value.storage_offset()) is int:
            node.meta["begins"] = True
            found[placeholders.index(node)] = value.storage_offset()
    return found


def check(inputs: Sequence[Any], begin: dict[int, int]) -> None:
    for i, place in begin.items():
        if (now := inputs[i].storage_offset()) != place:
            raise Elsewhere(f"as_strided reads an argument that begins at element {now} of its storage, not at {place}")


__all__ = ["Elsewhere", "beginnings", "check"]
