"""What of a step's results lies in memory that stays: an argument, a buffer, a parameter, or a part of one. The caller gets the
very tensor, or a part of it, so that he sees there what this step and later ones write, as in eager.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from trainc.base.errors import NotCompiled

Tensor = torch.Tensor


@dataclass(frozen=True)
class Returned:
    """An input; where `part` is not None, what lies there: (shape, strides, offset from the input's first element)."""

    input: int
    part: tuple | None = None

    def of(self, inputs: Sequence[Tensor]) -> Tensor:
        base = inputs[self.input]
        if self.part is None:
            return base
        shape, strides, offset = self.part
        return base.detach().as_strided(shape, strides, base.storage_offset() + offset)


def given_back(results: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Returned | None]:
    """Of each result of a trace: which input it is, or lies in; None where it has its own memory."""
    places = {tensor.untyped_storage()._cdata: i for i, tensor in enumerate(inputs)}
    return [_of_input(result, places.get(result.untyped_storage()._cdata), inputs) for result in results]


def _of_input(result: Tensor, i: int | None, inputs: Sequence[Tensor]) -> Returned | None:
    if i is None or result is inputs[i]:
        return None if i is None else Returned(i)
    base = inputs[i]
    part = tuple(result.shape), result.stride(), result.storage_offset() - base.storage_offset()
    if result.dtype != base.dtype or not all(type(n) is int for n in (*part[0], *part[1], part[2])):
        raise NotCompiled("the result is a part of an argument, of another type or of a size that changes")
    return Returned(i, part)


def is_view(node: torch.fx.Node) -> bool:
    """Whether an operation gives the memory of its operand."""
    return getattr(node.target, "is_view", False) or getattr(node.target, "__name__", "") == "getitem"


__all__ = ["Returned", "given_back", "is_view"]
