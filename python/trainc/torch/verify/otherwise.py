"""Where a program that is not its trace leaves it: the first operation of the trace whose value the program does not make."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from trainc.torch import compat
from trainc.torch.graph import wire
from trainc.torch.strided import is_view
from trainc.torch.verify import program
from trainc.torch.verify.case import Case

Tensor = torch.Tensor
NEAR = 1e-3  # of a value's norm: one that lies so near is the same one, rounded otherwise


class Values(compat.TorchDispatchMode):
    """Keeps what each operation gives."""

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[tuple, list[Tensor]] = {}  # by shape and type

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for each in compat.pytree.tree_leaves(result):
            if isinstance(each, Tensor):
                self.made.setdefault((each.shape, each.dtype), []).append(each.detach().clone())
        return result

    def has(self, value: Tensor) -> bool:
        return any(_near(value, each) for each in self.made.get((value.shape, value.dtype), ()))


def _near(a: Tensor, b: Tensor) -> bool:
    a, b = a.double().nan_to_num(), b.double().nan_to_num()
    return bool((a - b).norm() <= NEAR * b.norm())


def first_other(case: Case, place: int, again: Callable[[], Any]) -> torch.fx.Node:
    """`again()` runs the program. Where every value is there, what gives the result that differs, by its `place`."""
    with Values() as values:
        again()
    nodes = [
        node for node in case.graph.graph.nodes
        if node.op == "call_function" and isinstance(node.meta.get("val"), Tensor)
        and not is_view(node) and not wire.is_backward(node)
    ]  # fmt: skip
    nodes = nodes[: nodes.index(case.results[place]) + 1] if case.results[place] in nodes else nodes
    with case.device.generator_at(case.draws.state):
        made = program.run(case.graph.graph.nodes, case.values, nodes, case.device, case.draws)
    return next((node for node, value in zip(nodes, made, strict=True) if not values.has(value)), case.results[place])


__all__ = ["first_other"]
