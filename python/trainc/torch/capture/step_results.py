"""What of a step's results lies in memory that stays: an argument, a buffer, a parameter, or a part of one. The caller gets the
very tensor, or a part of it, so that he sees there what this step and later ones write, as in eager. So it is with results that
lie in one another: who writes into one writes into the other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from trainc.base.errors import NotCompiled
from trainc.torch.guards.overlap import shared
from trainc.torch.strided import part_of, span

Tensor = torch.Tensor


@dataclass(frozen=True)
class Returned:
    """The tensor that a result is, of the inputs and, after them, the results; where `part` is not None, what lies there: (shape,
    strides, offset from its first element)."""

    base: int
    part: tuple | None = None

    def of(self, tensors: Sequence[Any]) -> Tensor:
        base = tensors[self.base]
        return base if self.part is None else part_of(base.detach(), self.part)


def given_back(results: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Returned | None]:
    """Of each result of a trace: the input or the other result that it is or lies in; None where it has memory of its own."""
    places = {_memory(tensor): i for i, tensor in enumerate(inputs)}
    found: list[Returned | None] = [None] * len(results)
    together = defaultdict(list)
    for i, result in enumerate(results):
        if (place := places.get(_memory(result))) is not None:
            found[i] = Returned(place, None if result is inputs[place] else _part(result, inputs[place]))
        else:
            together[_memory(result)].append(i)
    for group in together.values():
        if len(group) > 1:
            whole, parts = _within_one([results[i] for i in group])
            for i, part in parts:
                found[group[i]] = Returned(len(inputs) + group[whole], part)
    return found


def _within_one(results: list[Tensor]) -> tuple[int, list[tuple[int, tuple]]]:
    """Of results in one memory: the one with the others in it, and which part of it each is; none where they lie apart."""
    whole = max(range(len(results)), key=lambda i: _elements(results[i]))
    parts = [(i, _part(result, results[whole])) for i, result in enumerate(results) if i != whole]
    size = results[whole].numel()
    if _elements(results[whole]) == size and all(0 <= part[2] <= size - _elements(results[i]) for i, part in parts):
        return whole, parts
    if shared(results, range(len(results)), address=lambda t: t.storage_offset() * t.itemsize) is None:
        return whole, []
    raise NotCompiled("two results share memory, and neither holds all of the other")


def _part(result: Tensor, base: Tensor) -> tuple:
    part = tuple(result.shape), result.stride(), result.storage_offset() - base.storage_offset()
    if result.dtype != base.dtype or not all(type(n) is int for n in (*part[0], *part[1], part[2])):
        raise NotCompiled("a result is a part of an argument or of another result, of another type or of a size that changes")
    return part


def _memory(tensor: Tensor) -> Any:
    return tensor.untyped_storage()._cdata


def _elements(tensor: Tensor) -> Any:
    return span(tensor.shape, tensor.stride())


__all__ = ["Returned", "given_back"]
