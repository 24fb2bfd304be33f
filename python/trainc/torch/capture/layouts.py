"""Operations that eager refuses for where their operands lie in memory, which a trace lets pass: it has functions of values. A
result that is to be written over an operand (`kthvalue(x, 2, out=(x, i))`) is a result of its own there, and a kernel that takes
dense memory alone is never called. Eager is asked, or known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from trainc.torch import compat
from trainc.torch.capture.dtypes import raised_for, said_to
from trainc.torch.graph import wire
from trainc.torch.strided import geometry, is_static

# Which operands a kernel takes only where they are dense, in whatever order of dimensions. (Layers make them so.)
DENSE: dict[Any, tuple[int, ...]] = {torch.ops.aten.native_group_norm.default: (0, 1, 2)}
_ORDERS = {4: [torch.contiguous_format, torch.channels_last], 5: [torch.contiguous_format, torch.channels_last_3d]}


def check_dense(operation: Any, args: tuple, kwargs: dict) -> None:
    """Eager's RuntimeError where a kernel is given an operand with gaps, or with its dimensions in another order."""
    given = [args[place] for place in DENSE[operation] if place < len(args)]
    given = [value for value in given if isinstance(value, compat.FunctionalTensor)]
    if all(map(_is_dense, given)) or not all(is_static(geometry(value)) for value in given):
        return
    if (refusal := said(operation, args, kwargs, together=True)) is not None:
        raise RuntimeError(refusal)


def _is_dense(value: torch.Tensor) -> bool:
    orders = _ORDERS.get(value.dim(), [torch.contiguous_format])
    return any(value.is_contiguous(memory_format=order) for order in orders)


def check_results(operation: Any, args: tuple, kwargs: dict) -> None:
    """Eager's RuntimeError where a result (`out=`, or what an operation in place writes) may not be written because it shares
    memory with an operand."""
    arguments = compat.schema_of(operation).arguments
    names = [argument.name for argument in arguments if argument.is_out]
    in_place = not names and args and arguments[0].alias_info is not None and arguments[0].alias_info.is_write
    results = args[:1] if in_place else [kwargs.get(name) for name in names]
    results = [value for value in results if isinstance(value, compat.FunctionalTensor)]
    if not results or wire.is_random(operation):
        return
    operands = [*args[1 if in_place else 0 :], *(value for name, value in kwargs.items() if name not in names)]
    given = [value for value in compat.pytree.tree_leaves(operands) if isinstance(value, compat.FunctionalTensor)]
    if in_place:  # the same elements are no harm
        here = [_elements(result) for result in results]
        given = [value for value in given if _elements(value) not in here]
    if {_memory(result) for result in results}.isdisjoint(map(_memory, given)) or not all(
        is_static(geometry(value)) for value in (*results, *given)
    ):
        return
    refusal = said(operation, args, kwargs, together=True)
    if refusal is not None and said(operation, args, kwargs, together=False) is None:
        raise RuntimeError(refusal)


def _memory(tensor: Any) -> int:
    return compat.storage_id(tensor.elem)


def _elements(tensor: Any) -> tuple:
    return _memory(tensor), geometry(tensor), tensor.storage_offset()


def said(operation: Any, args: tuple, kwargs: dict, together: bool) -> str | None:
    """What eager says to zeros that lie as these tensors do, or each by itself."""
    return said_to(operation, (args, kwargs), _zeros(together), (RuntimeError,))


def raised(operation: Any, args: tuple, kwargs: dict) -> Exception | None:
    """The error that eager raises for zeros that lie as these tensors do."""
    return raised_for(operation, (args, kwargs), _zeros(together=True), (Exception,))


def _zeros(together: bool) -> Callable[[Any], Any]:
    memories: dict[int, torch.UntypedStorage] = {}

    def real(value: Any) -> Any:
        if not isinstance(value, compat.FunctionalTensor):
            return value
        place = _memory(value) if together else len(memories)
        if place not in memories:
            size = value.elem.untyped_storage().nbytes()
            memories[place] = torch.zeros(size, dtype=torch.uint8, device=value.device).untyped_storage()
        empty = torch.empty(0, dtype=value.dtype, device=value.device)
        return empty.set_(memories[place], value.storage_offset(), value.shape, value.stride())

    return real


__all__ = ["DENSE", "check_dense", "check_results", "raised", "said"]
