# ruff: noqa: E501
"""Numbers at which formulas part: what the tests of values feed to operations, and how a result is compared with eager's."""

from __future__ import annotations

import math

import torch

INF, NAN = math.inf, math.nan
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
SIGNED = (torch.int64, torch.int32, torch.int16, torch.int8)
INTEGERS = (*SIGNED, torch.uint8)
NUMBERS = (*FLOATS, *INTEGERS)
ALL = (*NUMBERS, torch.bool)


def floats(dtype: torch.dtype) -> list[float]:
    """NaN, infinities, zeros, denormals, the largest numbers, ties of rounding, places where pieces of activations meet."""
    info = torch.finfo(dtype)
    denormal = info.tiny * info.eps
    near_one = [1 - info.eps, 1 + info.eps]
    sizes = [0.0, denormal, info.tiny - denormal, info.tiny, info.max, info.max * 0.6, 1e-3,
             0.25, 0.5, 0.7, 1.0, *near_one, 1.5, 2.0, 2.5, 3.0,
             3.5, 6.0, 9.5, 20.0, 21.0, 88.5, 104.5, 2.0**23 + 0.5, 2.0**31, 2.0**63]  # fmt: skip
    return [NAN, INF, -INF] + [sign * x for x in sizes if x <= info.max for sign in (1, -1)]


def integers(dtype: torch.dtype) -> list[int]:
    info = torch.iinfo(dtype)
    near = [0, 1, 2, 3, 5, 6, 7, 8, 15, 16, 31, 32, 63, 64, info.max // 2, info.max - 1, info.max]
    return sorted({sign * x for x in near for sign in (1, -1) if info.min <= sign * x} | {info.min, info.min + 1})


def of(dtype: torch.dtype, nonzero: bool = False) -> torch.Tensor:
    if dtype is torch.bool:
        return torch.tensor([True] if nonzero else [False, True])
    x = (
        torch.tensor(floats(dtype), dtype=torch.float64).to(dtype)
        if dtype.is_floating_point
        else torch.tensor(integers(dtype), dtype=dtype)
    )
    return x[x != 0] if nonzero else x


def whole(x: torch.Tensor) -> torch.Tensor:
    """As often as needed for whole vectors: eager's kernels end with scalar code that is not always the same formula."""
    return x[torch.arange(-(-x.numel() // 64) * 64) % x.numel()]


def grid(*vectors: torch.Tensor, limit: int = 4096) -> list[torch.Tensor]:
    """Each with each, as vectors of one length; where that is too much, a part of it that a seed chooses."""
    total = math.prod(len(v) for v in vectors)
    chosen = (
        whole(torch.arange(total))
        if total <= limit
        else torch.randint(total, (limit,), generator=torch.Generator().manual_seed(total))
    )
    out = []
    for v in reversed(vectors):
        out.append(v[chosen % len(v)].contiguous())
        chosen = chosen // len(v)
    return out[::-1]


def wrong(got: torch.Tensor, want: torch.Tensor, ulps: float = 0, zeros: bool = True, slack: float = 0) -> torch.Tensor:
    """Where `got` is not eager's: NaN where it is NaN, else within so many units of its last place (0: the same bits,
    the sign of zero too), or of 1's."""
    assert got.dtype == want.dtype and got.shape == want.shape, (
        f"{got.dtype}{list(got.shape)}, eager {want.dtype}{list(want.shape)}"
    )
    if not want.dtype.is_floating_point:
        return got != want
    bad = got.isnan() != want.isnan()
    if zeros:
        bad |= (got == 0) & (want == 0) & (got.signbit() != want.signbit())
    unequal = (got != want) & ~got.isnan() & ~want.isnan()
    if ulps:
        info = torch.finfo(want.dtype)
        near = (got.double() - want.double()).abs() <= info.eps * (ulps * want.double().abs().clamp(min=info.tiny) + slack)
        # A number that is rounded to infinity by one and not by the other is one unit away, too.
        edge = (
            (got.isinf() != want.isinf())
            & (got.signbit() == want.signbit())
            & (torch.minimum(got.abs(), want.abs()) >= info.max * (1 - ulps * info.eps))
        )
        unequal &= ~(near | edge)
    return bad | unequal


def report(got: torch.Tensor, want: torch.Tensor, inputs: list[torch.Tensor], bad: torch.Tensor, most: int = 6) -> str:
    lines = [f"{int(bad.sum())} of {bad.numel()}"]
    for i in bad.flatten().nonzero().flatten()[:most].tolist():
        at = ", ".join(repr(x.flatten()[i].item()) for x in inputs if x.shape == want.shape)
        lines.append(f"  ({at}) -> {got.flatten()[i].item()!r}, eager {want.flatten()[i].item()!r}")
    return "\n".join(lines)
