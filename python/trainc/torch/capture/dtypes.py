"""Operations that eager refuses for the dtypes of their operands, which a trace lets pass: PyTorch finds what a result would be
like without its kernels, and these alone look (a product of f64 and f32, a loss whose target is of another dtype, a number that
the dtype cannot hold: -1e9 in f16); and a write in place becomes an operation that gives another tensor (an integer tensor times
0.5). Eager is asked with small tensors, once for each operation, its operands' dtypes and such a number; so it is about numbers
that some kernels look at themselves (`refuse_numbers`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.fx.node import map_aggregate

from trainc.base.errors import RefusedByEager
from trainc.torch import numbers
from trainc.torch.compat import OpOverload, disable_current_modes
from trainc.torch.graph import wire
from trainc.torch.graph.sizes import SYMBOLIC

_PLAIN = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
_LEAST_LIMIT = torch.finfo(torch.float16).max
_PRODUCTS = {getattr(torch.ops.aten, name) for name in (
    "mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "addr", "convolution",
)}  # fmt: skip
# Eager's kernels, and no rule for traces, refuse a negative beta, and the gradient of an activation in place with a negative
# slope. (Found by giving numbers out of range to all losses, activations, pads, pools and draws.)
_LOOK_AT_NUMBERS = {getattr(torch.ops.aten, name) for name in (
    "smooth_l1_loss", "leaky_relu_backward", "elu_backward", "rrelu_with_noise_backward",
)}  # fmt: skip
_refused: dict[tuple, str | None] = {}  # by operation, dtypes and the numbers that a dtype cannot hold: what eager says


def refuse_mixed(forward: Iterable[torch.fx.Node]) -> None:
    """RefusedByEager where eager would raise an error for floats of several dtypes, or for a number. Of the forward alone: what a
    kernel keeps for the backward may have another dtype than a trace says (the mean of a norm of bf16 with f32 weights)."""
    for node in forward:
        if node.op != "call_function" or not isinstance(node.target, OpOverload) or node.target.namespace != "aten":
            continue
        values = [n.meta.get("val") for n in node.all_input_nodes]
        operands = [value for value in values if isinstance(value, torch.Tensor)]
        dtypes = tuple([operand.dtype for operand in operands])
        floats = {dtype for dtype in dtypes if dtype.is_floating_point}
        odd = _odd(node, floats)
        product = node.target.overloadpacket in _PRODUCTS and len(set(dtypes)) > 1  # of f32 and i64, say
        if len(floats) < 2 and not odd and not product or wire.is_random(node.target):
            continue
        key = (node.target, dtypes, odd, *[operand.dim() for operand in operands], operands[0].device.type)
        if key not in _refused:
            _refused[key] = _said(node.target, _arguments(node), 0) if product else _said_of_mixed(node, floats, odd)
        if (said := _refused[key]) is not None:
            raise RefusedByEager(f"{wire.origin(node)} ({wire.target_name(node.target)}): {said}", RuntimeError(said))


def refuse_numbers(nodes: Iterable[torch.fx.Node]) -> None:
    """RefusedByEager where eager's own kernel refuses a number, in forward or backward."""
    for node in nodes:
        if node.op != "call_function" or getattr(node.target, "overloadpacket", None) not in _LOOK_AT_NUMBERS:
            continue
        arguments = _arguments(node)
        key = (node.target, str([arg for arg in arguments[0] if not isinstance(arg, torch.Tensor)]))
        if key not in _refused:
            _refused[key] = said_to(node.target, arguments, _of_one_element)
        if (said := _refused[key]) is not None:
            raise RefusedByEager(f"{wire.origin(node)} ({wire.target_name(node.target)}): {said}", RuntimeError(said))


def _of_one_element(arg: Any) -> Any:
    return torch.ones(1) if isinstance(arg, torch.Tensor) else arg


def _odd(node: torch.fx.Node, floats: set[torch.dtype]) -> tuple[float, ...]:
    """The numbers among a node's arguments that one of these dtypes cannot hold, and a truth value as a factor."""
    given = [arg for arg in (*node.args, *node.kwargs.values()) if type(arg) in (int, float) and abs(arg) > _LEAST_LIMIT]
    limit = min((torch.finfo(dtype).max for dtype in floats), default=math.inf) if given else 0
    factors = [factor for factor in (node.kwargs.get("alpha"), node.kwargs.get("beta")) if type(factor) is bool]
    return (*[arg for arg in given if limit < abs(arg) < math.inf], *factors)


def _said_of_mixed(node: torch.fx.Node, floats: set[torch.dtype], odd: tuple[float, ...]) -> str | None:
    """None where eager takes these operands, or where it refuses them even with one dtype: then the dtypes are not at fault."""
    arguments = _arguments(node)
    said = _said(node.target, arguments, 0)
    held = map_aggregate(arguments, lambda arg: 0 if any(arg is each for each in odd) else arg)
    return said if said is not None and any(_said(node.target, held, 0, dtype) is None for dtype in floats) else None


def _arguments(node: torch.fx.Node) -> tuple:
    return map_aggregate((node.args, node.kwargs), lambda arg: arg.meta.get("val") if isinstance(arg, torch.fx.Node) else arg)


def check_in_place(operation: Any, args: tuple, kwargs: dict) -> None:
    """Eager's RuntimeError where the result of an elementwise operation cannot be written over its first operand."""
    written = args[0] if args else None
    if not isinstance(written, torch.Tensor) or written.is_floating_point() or written.is_complex():
        return
    if torch.Tag.pointwise not in operation.tags or wire.is_random(operation):
        return
    key = (operation, *[arg.dtype if isinstance(arg, torch.Tensor) else type(arg) for arg in (*args, *kwargs.values())])
    if key not in _refused:
        _refused[key] = _said(operation, (args, kwargs), 1)
    if (said := _refused[key]) is not None:
        raise RuntimeError(said)


def _said(operation: Any, arguments: tuple, value: int, floats: torch.dtype | None = None) -> str | None:
    """What eager says to tensors and symbolic numbers of this value; `floats`: all of this dtype."""
    small = torch.Tag.pointwise in operation.tags

    def real(arg: Any) -> Any:
        if isinstance(arg, SYMBOLIC):
            return _PLAIN[type(arg)](value) if small or numbers.id_of(arg) is not None else arg.node.hint
        if not isinstance(arg, torch.Tensor):
            return arg
        sizes = [1 if small else size if type(size) is int else size.node.hint for size in arg.shape]
        return torch.full(sizes, value, dtype=floats if floats is not None and _is_float(arg) else arg.dtype, device=arg.device)

    return said_to(operation, arguments, real)


def said_to(
    operation: Any, arguments: tuple, real: Callable[[Any], Any],
    refusals: tuple[type[Exception], ...] = (RuntimeError, TypeError, ValueError),
) -> str | None:  # fmt: skip
    """The first line of what eager says to `arguments` (args, kwargs), whose leaves `real` makes real; None where it takes
    them."""
    error = raised_for(operation, arguments, real, refusals)
    return None if error is None else str(error).strip().splitlines()[0]


def raised_for(
    operation: Any, arguments: tuple, real: Callable[[Any], Any], refusals: tuple[type[Exception], ...]
) -> Exception | None:
    """The error itself."""
    with disable_current_modes(), torch.no_grad():
        args, kwargs = map_aggregate(arguments, real)
        try:
            operation(*args, **kwargs)
        except refusals as error:
            return error
    return None


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype.is_floating_point


__all__ = ["check_in_place", "raised_for", "refuse_mixed", "refuse_numbers", "said_to"]
