"""A captured graph as PyTorch runs it, operation by operation: as it is, in float64, and with every value's last bit disturbed.

The runs draw the same random numbers: the first draws, and the masks that it drew are given to the one in float64, for eager
draws other ones in another precision.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from trainc.torch import compat
from trainc.torch.device import Host
from trainc.torch.graph import wire
from trainc.torch.strided import is_view

Tensor = torch.Tensor
Node = torch.fx.Node

NARROW = (torch.float32, torch.bfloat16, torch.float16)


class Draws:
    """The generator's state when a graph begins, and what its operations drew in the first run. `late`: its state when the
    backward begins, for what that draws itself."""

    def __init__(self, state: Tensor, late: Tensor | None = None):
        self.state, self.late = state, late
        self.drawn: dict[str, Any] = {}  # by node


def draws(node: Node) -> bool:
    """Whether an operation draws random numbers. PyTorch's fused attention says so also where it drops nothing."""
    if not wire.is_random(node.target):
        return False
    return not ("scaled_dot_product" in wire.target_name(node.target) and not _dropout_of_attention(node))


def _dropout_of_attention(node: Node) -> float:
    names = [argument.name for argument in compat.schema_of(node.target).arguments]
    at = names.index("dropout_p") if "dropout_p" in names else len(node.args)
    return node.args[at] if at < len(node.args) else node.kwargs.get("dropout_p", 0.0)


def run(
    nodes: Iterable[Node], inputs: Sequence[Any], outputs: Sequence[Any], device: Host, given: Draws, *, wide: bool = False,
    noise: torch.Generator | None = None,
) -> list[Any]:  # fmt: skip
    """The values of `outputs` (nodes, or None) of the graph whose `nodes` these are. The generator is left where the program's
    would be; it begins at `given.state`. `wide`: in float64, with the masks of the run before. `noise`: with the last bit of each
    input and of each result disturbed."""
    nodes = list(nodes)
    wanted = _wanted(nodes, outputs)
    uses = _last_uses(nodes, wanted, outputs)
    values: dict[Node, Any] = {}
    remaining, generator = iter(inputs), device.generator()
    generator.set_state(given.state)
    late = given.late
    with torch.no_grad(), compat.DisableAutocast():  # the graph has the casts
        for node in nodes:
            if node.op == "placeholder":
                value = next(remaining)
                values[node] = _widened(value) if wide else value if noise is None else _disturbed(value, noise)
            elif node.op == "call_function" and node in wanted:
                if late is not None and draws(node) and wire.is_backward(node):
                    generator.set_state(late)
                    late = None
                value = values[node] = _call(node, values, given, wide)
                if noise is not None and not is_view(node):
                    values[node] = compat.pytree.tree_map(lambda result: _disturbed(result, noise), value)
            for used in uses.get(node, ()):
                values.pop(used, None)
        return [values[out] if isinstance(out, Node) else None for out in outputs]


def _call(node: Node, values: dict[Node, Any], given: Draws, wide: bool) -> Any:
    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: values[n])
    if wide:
        if draws(node):
            return _drawn_again(node, args, given)
        args, kwargs = compat.pytree.tree_map(_wide_type, (args, kwargs))
        return compat.pytree.tree_map(_widened, node.target(*args, **kwargs))
    result = node.target(*args, **kwargs)
    if draws(node):  # of a dropout the mask is enough
        given.drawn[node.name] = result[1] if node.target is torch.ops.aten.native_dropout.default else result
    return result


def _drawn_again(node: Node, args: Sequence[Any], given: Draws) -> Any:
    drawn = given.drawn[node.name]
    if node.target is torch.ops.aten.native_dropout.default:
        x, p = args[0], args[1]
        return (x * drawn / (1.0 - p) if p < 1.0 else torch.zeros_like(x)), drawn
    return compat.pytree.tree_map(_widened, drawn)


def _wide_type(argument: Any) -> Any:
    return torch.float64 if isinstance(argument, torch.dtype) and argument in NARROW else argument


def _widened(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.dtype in NARROW else value


def _wanted(nodes: Sequence[Node], outputs: Sequence[Any]) -> set[Node]:
    """What the outputs need, and everything that draws before them: its draws have their turn."""
    wanted = {out for out in outputs if isinstance(out, Node)}
    backward = any(wire.is_backward(out) for out in wanted)
    for node in reversed(nodes):
        if node.op == "call_function" and draws(node) and (backward or not wire.is_backward(node)):
            wanted.add(node)
        if node in wanted:
            wanted.update(node.all_input_nodes)
    return wanted


def _last_uses(nodes: Sequence[Node], wanted: set[Node], outputs: Sequence[Any]) -> dict[Node, list[Node]]:
    """After which node each value is needed no more."""
    kept, seen, uses = {out for out in outputs if isinstance(out, Node)}, set(), {}
    for node in reversed(nodes):
        if node not in wanted:
            continue
        for used in node.all_input_nodes:
            if used not in seen and used not in kept:
                seen.add(used)
                uses.setdefault(node, []).append(used)
    return uses


def _disturbed(value: Any, noise: torch.Generator) -> Any:
    """As if it had been rounded otherwise: times 1 + N(0, 1) / 2 ulp."""
    if not isinstance(value, Tensor) or not value.dtype.is_floating_point:
        return value
    unit = torch.finfo(value.dtype).eps / 2
    factor = 1 + unit * torch.randn(value.shape, generator=noise, dtype=torch.float64).to(value.device)
    return torch.empty_like(value).copy_(value.double() * factor)


def terms(nodes: Iterable[Node]) -> int:
    """At least as many as any sum in the graph has terms."""
    return max((math.prod(value.shape) for node in nodes for value in _tensors(node)), default=1)


def _tensors(node: Node) -> list[Tensor]:
    return [value for value in compat.pytree.tree_leaves(node.meta.get("val")) if isinstance(value, Tensor)]


__all__ = ["Draws", "draws", "run", "terms"]
