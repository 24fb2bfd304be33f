"""Tensors that lie in one another's memory, where one of them is written.

A plan reads all that it is given before it writes any of it: where two inputs share elements, the program's later reads would
have seen what was written. Such calls run in PyTorch. Inputs that are only read may overlap as they like.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from trainc.base.errors import NotCompiled
from trainc.torch.compat import FakeTensor, TracingContext, is_traceable_wrapper_subclass, storage_id
from trainc.torch.strided import is_apart, share_a_place, span

Tensor = torch.Tensor


class Overlapping(NotCompiled):
    """Inputs of a call overlap, and it writes one of them. Nothing has run yet."""


_NOTHING = torch.empty(0)


class Apart:
    """Whether the inputs of a plan lie apart from those that it writes. Their addresses tell at once where that is known."""

    def __init__(self) -> None:
        self._known: list[int] | None = None
        # inputs, by index, whose version counts what is written to a neighbour: views of one tensor that do not overlap
        self.neighbours: set[int] = set()

    def check(self, tensors: Sequence[Tensor], written: Collection[int]) -> None:
        """Overlapping where they do not. The tensors have the same shapes and strides each time, and the same are written; what
        is none shares nothing."""
        pointers = [t.data_ptr() if isinstance(t, Tensor) else 0 for t in tensors]
        if pointers == self._known:
            return
        if self._known is not None and self._only_read_ones_moved(tensors, pointers):
            self._known = pointers
            return
        tensors = [t if isinstance(t, Tensor) else _NOTHING for t in tensors]
        for tensor in (tensors[i] for i in written):
            if not is_apart(tensor.shape, tensor.stride()):
                raise Overlapping(f"it writes a tensor of shape {list(tensor.shape)} whose elements share memory")
        if pair := shared(tensors, written):
            raise Overlapping(
                f"it writes a tensor of shape {list(tensors[pair[0]].shape)} that shares memory with another of shape "
                f"{list(tensors[pair[1]].shape)}"
            )
        self._written, storages = set(written), {storage_id(tensors[i]) for i in written}
        self.neighbours = {i for i, t in enumerate(tensors) if storage_id(t) in storages} - self._written
        spans = sorted((pointers[i], pointers[i] + span(t.shape, t.stride()) * t.itemsize) for i in written for t in [tensors[i]])
        self._starts, self._ends = [start for start, _ in spans], list(itertools.accumulate((end for _, end in spans), max))
        self._known = pointers

    def _only_read_ones_moved(self, tensors: Sequence[Tensor], pointers: list[int]) -> bool:
        """Whether what lies elsewhere than it was known to (a batch does, at each step) is only read, from a storage in whose
        memory nothing is written."""
        for i, (pointer, known) in enumerate(zip(pointers, self._known, strict=True)):
            if pointer and pointer == known:
                continue
            if i in self._written or i in self.neighbours:
                return False
            if not isinstance(tensors[i], Tensor):
                continue
            storage = tensors[i].untyped_storage()
            start = storage.data_ptr()
            before = bisect.bisect_left(self._starts, start + storage.nbytes())  # those that begin before its end
            if before and self._ends[before - 1] > start:
                return False
        return True


def shared(
    tensors: Sequence[Tensor], written: Collection[int], address: Callable[[Tensor], int] = Tensor.data_ptr
) -> tuple[int, int] | None:
    """(one of `written`, another tensor that shares an element with it), by index; None where there are none such. Both may be
    one tensor given twice."""
    chosen = set(written)
    starts = [address(t) for t in tensors]
    lengths = [span(t.shape, t.stride()) * t.itemsize for t in tensors]
    spans = sorted((start, start + n, i) for i, (start, n) in enumerate(zip(starts, lengths, strict=True)) if n)
    open_: list[tuple[int, int]] = []  # (end, index) of those that may reach over the next one's start
    for start, end, i in spans:
        open_ = [(other_end, j) for other_end, j in open_ if other_end > start]
        for _, j in open_:
            if (i in chosen or j in chosen) and share_a_place(tensors[i], tensors[j], starts[j] - starts[i]):
                return (i, j) if i in chosen else (j, i)
        open_.append((end, i))
    return None


def apart(tensors: Sequence[Any]) -> list[Any]:
    """The tensors, for a trace: one whose storage another before it has is replaced by one of the same type in memory of its own,
    whose elements are anything."""
    seen: set[int] = set()
    found = []
    for t in tensors:
        if not isinstance(t, Tensor) or is_traceable_wrapper_subclass(t):  # such a one's memory is that of what it wraps
            found.append(t)
            continue
        storage = storage_id(t)
        found.append(_twin(t) if storage in seen else t)
        seen.add(storage)
    return found


def _twin(t: Tensor) -> Tensor:
    """Among the fakes of a trace, and under Dynamo, which knows no tensors but those that it was given: a fake."""
    context = TracingContext.try_get()
    mode = t.fake_mode if isinstance(t, FakeTensor) else context.fake_mode if context is not None else None
    with mode or contextlib.nullcontext():
        return _of_type(t)


def _of_type(t: Tensor) -> Tensor:
    made = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device)
    if isinstance(t, torch.nn.Parameter):
        return torch.nn.Parameter(made, t.requires_grad)
    if not t.requires_grad:
        return made
    with torch.enable_grad():
        made.requires_grad_()
        return made if t.is_leaf else made.view_as(made)


__all__ = ["Apart", "Overlapping", "apart", "shared"]
