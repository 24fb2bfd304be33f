"""Operations that eager refuses for the dtypes of their operands, which a trace lets pass: PyTorch finds what a result would be
like without its kernels, and these alone look (a product of f64 and f32, a loss whose target is of another dtype). Eager is asked
with zeros, once for each operation and its operands' dtypes."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx.node import map_aggregate

from trainc.base.errors import NotCompiled
from trainc.torch import numbers
from trainc.torch.compat import OpOverload, disable_current_modes
from trainc.torch.graph import wire
from trainc.torch.graph.sizes import SYMBOLIC

_refused: dict[tuple, str | None] = {}  # by operation and dtypes: what eager says


def refuse_mixed(graph: torch.fx.Graph) -> None:
    """NotCompiled where eager would raise an error."""
    for node in graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, OpOverload) or node.target.namespace != "aten":
            continue
        if node.meta.get("partitioner_tag") == "is_backward":  # eager would refuse it when the backward runs, if at all
            continue
        values = [n.meta.get("val") for n in node.all_input_nodes]
        operands = [value for value in values if isinstance(value, torch.Tensor)]
        dtypes = tuple([operand.dtype for operand in operands])
        if len({dtype for dtype in dtypes if dtype.is_floating_point}) < 2 or wire.is_random(node.target):
            continue
        key = (node.target, dtypes, operands[0].device.type)
        if key not in _refused:
            _refused[key] = _asked(node)
        if (said := _refused[key]) is not None:
            raise NotCompiled(f"{wire.origin(node)} ({wire.target_name(node.target)}): {said}")


def _asked(node: torch.fx.Node) -> str | None:
    """What eager says of the operands' dtypes; None where it takes them, or would not take these zeros in one dtype either."""
    said = _error(node, None)
    if said is None:
        return None
    floats = {n.meta["val"].dtype for n in node.all_input_nodes if _is_float(n.meta.get("val"))}
    return said if any(_error(node, dtype) is None for dtype in floats) else None


def _error(node: torch.fx.Node, floats: torch.dtype | None) -> str | None:
    """What eager says to zeros; `floats`: all of this dtype."""
    small = torch.Tag.pointwise in node.target.tags

    def zeros(operand: Any) -> Any:
        if numbers.id_of(operand) is not None:
            return 0.0
        value = operand.meta.get("val") if isinstance(operand, torch.fx.Node) else operand
        if not isinstance(value, torch.Tensor):
            return value.node.hint if isinstance(value, SYMBOLIC) else value
        dtype = floats if floats is not None and _is_float(value) else value.dtype
        sizes = [1 if small else size if type(size) is int else size.node.hint for size in value.shape]
        return torch.zeros(sizes, dtype=dtype, device=value.device)

    with disable_current_modes(), torch.no_grad():
        args, kwargs = map_aggregate((node.args, node.kwargs), zeros)
        try:
            node.target(*args, **kwargs)
        except (RuntimeError, TypeError, ValueError) as error:
            return str(error).strip().splitlines()[0]
    return None


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype.is_floating_point


__all__ = ["refuse_mixed"]
