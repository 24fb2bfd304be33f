"""Where the elements of strided tensors lie."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import torch


def span(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Elements from the first to the last, gaps included; 0 where there are none."""
    return 0 if 0 in shape else 1 + sum((size - 1) * step for size, step in zip(shape, strides, strict=True))


def is_apart(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether each element has a place of its own; no where that cannot be told by nested dimensions."""
    reach = 0
    for step, size in sorted((step, size) for step, size in zip(strides, shape, strict=True) if size != 1):
        if step <= reach:
            return 0 in shape
        reach += step * (size - 1)
    return True


def share_a_place(a: torch.Tensor, b: torch.Tensor, distance: int) -> bool:
    """Whether a byte of `a` is one of `b`, whose first element lies `distance` bytes behind that of `a`. There is one where the
    sums of index * stride differ by as much; the indices of one stride, of `a` and of `b`, go together."""
    if 0 in a.shape or 0 in b.shape:
        return False
    least: defaultdict[int, int] = defaultdict(int)  # by stride in bytes: of what may be an index of a's less one of b's
    greatest: defaultdict[int, int] = defaultdict(int)
    for size, step in _bytes(a):
        greatest[step] += size - 1
    for size, step in _bytes(b):
        least[step] -= size - 1
    steps = sorted({*least, *greatest} - {0}, reverse=True)
    left = {distance}  # what the strides that come yet have to make up, one way or another
    for i, step in enumerate(steps):
        low, high = (sum(ends[s] * s for s in steps[i + 1 :]) for ends in (least, greatest))
        left = {
            rest - index * step
            for rest in left
            for index in range(max(least[step], -((high - rest) // step)), min(greatest[step], (rest - low) // step) + 1)
        }
    return 0 in left


def _bytes(tensor: torch.Tensor) -> Iterator[tuple[int, int]]:
    """(size, stride) of its dimensions, and of the bytes of an element."""
    for size, step in zip(tensor.shape, tensor.stride(), strict=True):
        yield size, step * tensor.itemsize
    yield tensor.itemsize, 1


def geometry(tensor: torch.Tensor) -> tuple:
    """Sizes, strides and the place of the first element in the storage."""
    return (*tensor.shape, *tensor.stride(), tensor.storage_offset())


def is_static(numbers: Iterable[object]) -> bool:
    """Whether they are numbers, and no symbols of a trace."""
    return all(type(number) is int for number in numbers)


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether the elements lie side by side, in whatever order of dimensions."""
    return is_apart(shape, strides) and span(shape, strides) == math.prod(shape)


def part_of(base: torch.Tensor, part: tuple) -> torch.Tensor:
    """`part`: shape, strides, and the offset from the first element of `base`."""
    shape, strides, offset = part
    return base.as_strided(shape, strides, base.storage_offset() + offset)


def can_lie(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether `laid` can make such a tensor: elements share a place along expanded dimensions alone."""
    return is_apart([1 if step == 0 else size for step, size in zip(strides, shape, strict=True)], strides)


def once(tensor: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """The first of `tensor`'s elements along each dimension whose stride is 0: PyTorch writes to no place twice."""
    return tensor[tuple([slice(1) if step == 0 else slice(None) for step in strides])] if 0 in strides else tensor


def laid(given: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """`given` in memory of these strides; along those that are 0 its elements are the same."""
    if given.stride() == tuple(strides):
        return given
    copy = given.new_empty_strided(given.shape, strides)
    once(copy, strides).copy_(once(given, strides))
    return copy


def is_freed(tensor: torch.Tensor) -> bool:
    """Whether its memory was given back (`untyped_storage().resize_(0)`, as FSDP does between steps): a read would crash."""
    return tensor.numel() > 0 and not tensor.data_ptr()


# Their schemas deny that they give views, so that who writes there is not asked about it.
UNSAFE_VIEWS = {torch.ops.aten.unsafe_split.Tensor, torch.ops.aten.unsafe_split_with_sizes.default}


def is_view(node: torch.fx.Node) -> bool:
    """Whether an operation gives the memory of its operand."""
    if node.target in UNSAFE_VIEWS or getattr(node.target, "is_view", False):
        return True
    return getattr(node.target, "__name__", "") == "getitem"


__all__ = [
    "UNSAFE_VIEWS", "can_lie", "geometry", "is_apart", "is_dense", "is_freed", "is_static", "is_view", "laid", "once",
    "part_of", "share_a_place", "span",
]  # fmt: skip
