"""Linear resizing in 1 to 3 dimensions, written out with eager's weights: (1 - w) * a + w * b.

PyTorch's own decomposition has a + w * (b - a), the same number but where a or b is infinite: eager multiplies both
neighbours, the one of weight 0, too, so that an infinite one gives NaN there and stays infinite elsewhere. A dimension
that keeps its length has each element for its own second neighbour, of weight 0.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from trainc.torch.compat import decompositions


@decompositions.pw_cast_for_opmath
def linear(x: torch.Tensor, sizes: Sequence[int], align_corners: bool, *factors: float | None) -> torch.Tensor:
    """`x` (N, C, *old) of a floating type -> (N, C, *sizes); a factor that is None is the ratio of the lengths."""
    sides = [
        _neighbours(x, old, size, align_corners, factor) for old, size, factor in zip(x.shape[2:], sizes, factors, strict=True)
    ]
    # Each dimension's index lies along its own axis of the result.
    shaped = [[t.reshape(-1, *[1] * (len(sides) - 1 - k)) for t in side] for k, side in enumerate(sides)]
    parts = [
        torch.ops.aten._unsafe_index(x, [None, None, *(side[which] for side, which in zip(shaped, corner, strict=True))])
        for corner in itertools.product((0, 1), repeat=len(shaped))
    ]
    for _, _, weight in reversed(shaped):
        parts = [(1 - weight) * a + weight * b for a, b in zip(parts[::2], parts[1::2], strict=True)]
    few_on_a_gpu = x.device.type == "cuda" and x.shape[1] < 16  # there eager's kernel gives them contiguous
    return parts[0].contiguous(
        memory_format=torch.contiguous_format if few_on_a_gpu else decompositions.utils.suggest_memory_format(x)
    )


def _neighbours(
    x: torch.Tensor, old: int, size: int, align_corners: bool, factor: float | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """For each place of the result: its neighbours' indices (int64), and the weight of the second."""
    at = torch.arange(size, device=x.device)
    if size == old:
        return at, at, torch.zeros(size, dtype=x.dtype, device=x.device)
    places = at.to(x.dtype)
    if align_corners:
        place = places * ((old - 1) / (size - 1) if size > 1 else 0.0)
    else:  # the middle of an element lies half a length after its beginning
        place = (1 / factor if factor is not None and factor > 0 else old / size) * (places + 0.5) - 0.5
    place = place.clamp(min=0.0)
    first = place.to(torch.int64)
    return first, (first + 1).clamp(max=old - 1), (place - first).clamp(0.0, 1.0)


__all__ = ["linear"]
