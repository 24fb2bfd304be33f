"""How far a result may lie from the truth: the rule of docs/numerics.md, asked of one tensor of one step.

The truth is a float64 run of the same computation, the yardstick eager's own distance from it. Eager may be exact by luck (the
mean of three equal numbers): so it counts for an ulp at least, and where that is not enough it also runs with the last bit of
every value disturbed, which tells how far it might as well have been.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch

Tensor = torch.Tensor

# Of a tensor's root mean square, and of its worst element, over eager's. One tensor of one step is little to go by:
# the bound that holds over all of a model's gradients, 1.0, is tested in tests/python/test_gradients.py.
MOST, MOST_OF_ONE = 8.0, 32.0


@dataclasses.dataclass(frozen=True)
class Distance:
    """Of one result of ours from the truth."""

    ratio: float  # over eager's own, in the root mean square
    parted: bool  # whether it is farther than it may be
    error: float  # root mean square, of the truth's own
    allowed: float


SAME = Distance(0.0, False, 0.0, 0.0)


def distance(ours: Tensor, eager: Tensor, truth: Tensor | None, others: Sequence[Tensor] = (), terms: int = 1) -> Distance:
    """`others`: eager's results with every rounding disturbed. `terms`: of the longest sum; asked where there is no `truth`."""
    if ours.shape != eager.shape or ours.dtype != eager.dtype:
        return Distance(math.inf, True, math.inf, 0.0)
    if torch.equal(ours, eager):
        return SAME
    if not eager.dtype.is_floating_point:
        return _of_integers(ours, eager, truth, others)
    unit = torch.finfo(eager.dtype).eps
    if truth is None:
        truth, unit = eager, unit * (8 + 2 * math.log2(max(terms, 2))) / MOST
    exact, mine, its = truth.double(), ours.double(), eager.double()
    finite = its.isfinite() & exact.isfinite() & mine.isfinite()
    if not bool(((mine == its) | (mine.isnan() & its.isnan()) | finite).all()) and _other_class(mine, its, exact, others):
        return Distance(math.inf, True, math.inf, 0.0)
    if not bool(finite.any()):
        return SAME
    size, largest = _sizes(exact[finite])
    error, worst = _sizes((mine - exact)[finite])
    yard, yard_of_one = unit * size, unit * largest
    for run in (its, *(other.double() for other in others)):
        off, most = _sizes((run - exact)[finite].nan_to_num(0.0, 0.0, 0.0))
        yard, yard_of_one = max(yard, off), max(yard_of_one, most)
    least = torch.finfo(torch.float64).tiny + torch.finfo(eager.dtype).tiny  # flushed denormals are no difference
    ratio, of_one = error / (yard + least), worst / (yard_of_one + least)
    scale = size or 1.0
    return Distance(ratio, ratio > MOST or of_one > MOST_OF_ONE, error / scale, MOST * yard / scale)


def _of_integers(ours: Tensor, eager: Tensor, truth: Tensor | None, others: Sequence[Tensor]) -> Distance:
    """Classes, masks and positions are the same ones; but a choice between two numbers that lie near each other may be another,
    where eager itself chooses otherwise when it is disturbed."""
    different = float((ours != eager).double().mean())
    own = [run for run in (truth, *others) if run is not None and run.dtype == eager.dtype]
    yard = max((float((run != eager).double().mean()) for run in own), default=0.0)
    ratio = different / yard if yard else math.inf
    return Distance(ratio, ratio > MOST, different, MOST * yard)


def _other_class(mine: Tensor, its: Tensor, exact: Tensor, others: Sequence[Tensor]) -> bool:
    """Whether a number is NaN or infinite where eager's, disturbed or not, and the true one are neither; or the other way round;
    or another of the three."""
    calm = its.isfinite() & exact.isfinite()
    wild = ~its.isfinite() & ~exact.isfinite()
    for other in others:
        calm &= other.isfinite()
        wild &= ~other.isfinite()
    agrees = (mine == its) | (mine.isnan() & its.isnan())
    return bool((calm & ~mine.isfinite() | wild & ~agrees).any())


def _sizes(x: Tensor) -> tuple[float, float]:
    """(root mean square, greatest magnitude)"""
    if x.numel() == 0:
        return 0.0, 0.0
    greatest = float(x.abs().max())
    if greatest == 0.0:
        return 0.0, 0.0
    return float((x / greatest).square().mean().sqrt()) * greatest, greatest


__all__ = ["Distance", "MOST", "SAME", "distance"]
