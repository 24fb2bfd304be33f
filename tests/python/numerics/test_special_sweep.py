# ruff: noqa: E501
"""Every unary and binary operation of PyTorch's own table (`op_db`) at NaN, infinities, zeros of both signs, denormals and the ends of each type,
forward and backward, compiled, against eager: the same class of number everywhere, and the same number to the rounding of another formula.

A part runs here, chosen by a fixed rule; `TRAINC_SWEEP=1 pytest tests/python/numerics/test_special_sweep.py` runs all."""

from __future__ import annotations

import os
import zlib

import pytest
import special_values as special
import torch
from torch import nn

import trainc

pytest.importorskip("expecttest")  # torch.testing._internal wants it
from torch.testing._internal.common_methods_invocations import BinaryUfuncInfo, UnaryUfuncInfo, op_db

DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool)
# Relative; "near" is all that is asked of formulas that differ in their last digits. The classes of special_values.wrong are asked of all.
NEAR = {torch.float32: 1e-5, torch.bfloat16: 2.0**-6, torch.float16: 2.0**-9, torch.float64: 1e-9}
EVERYTHING = os.environ.get("TRAINC_SWEEP") == "1"
PART = 5  # of the operations, one in so many
DIVIDES = ("remainder", "fmod", "floor_divide", "__rmod__", "div.trunc_rounding", "div.floor_rounding")  # a divisor of 0 raises; see test_special_values.py
# Random; of dtypes that the compiler does not know; compiled by a kernel of their own (jiterator); or as many steps in eager as the number says.
LEFT_OUT = ("nn.functional.rrelu", "jiterator", "polynomial", "prelu", "chalf", "cdouble", "cfloat", "complex", "polar", "imag", "real", "silu.complex")
# One tensor of any shape, though the table does not say that they are elementwise.
MORE = ("nn.functional.hardswish", "nn.functional.leaky_relu", "nn.functional.soft_margin_loss", "nn.functional.smooth_l1_loss",
        "nn.functional.l1_loss", "nn.functional.mse_loss", "nn.functional.huber_loss")  # fmt: skip
LOSSES = ("soft_margin_loss", "smooth_l1_loss", "l1_loss", "mse_loss", "huber_loss")


def is_binary(op) -> bool:
    return isinstance(op, BinaryUfuncInfo) or op.name.endswith(LOSSES)


OPERATIONS = {
    op.full_name: op
    for op in op_db
    if (isinstance(op, (UnaryUfuncInfo, BinaryUfuncInfo)) or op.full_name in MORE) and not any(part in op.full_name for part in LEFT_OUT)
}
CHOSEN = [name for name in OPERATIONS if EVERYTHING or zlib.crc32(name.encode()) % PART == 0]


def arguments(op, dtype: torch.dtype) -> tuple[list[torch.Tensor], dict]:
    """Special numbers of the dtype; the rest (a mode, a number of decimals) as in the table's first sample."""
    sample = next(iter(op.sample_inputs("cpu", dtype)))
    if not is_binary(op):
        x = special.whole(special.of(dtype))
        return [x, *[x[:1] if isinstance(a, torch.Tensor) and a.numel() == 1 else a for a in sample.args]], sample.kwargs
    divides = op.full_name in DIVIDES and not dtype.is_floating_point
    x, y = special.grid(special.of(dtype, nonzero=divides), special.of(dtype, nonzero=divides), limit=2048)
    if dtype is torch.int64:
        least = torch.iinfo(dtype).min  # over -1, it ends the process in eager
        keep = ~((x == least) & (y == -1)) & ~((x == -1) & (y == least))
        if op.full_name in ("gcd", "lcm"):
            keep &= (x != least) & (y != least)
        x, y = special.whole(x[keep]), special.whole(y[keep])
    kwargs = dict(sample.kwargs)
    if op.name.endswith(LOSSES):
        kwargs["reduction"] = "none"
    return [x, y, *sample.args[1:]], kwargs


def tangent(x: torch.Tensor) -> torch.Tensor:
    return torch.linspace(-1, 1.5, max(x.numel(), 1), dtype=torch.float64)[: x.numel()].reshape(x.shape).to(x.dtype)


class Each(nn.Module):
    """One operation of each of these argument lists."""

    def __init__(self, op, lists):
        super().__init__()
        self.op = op.op
        self.rest = [([a for a in args if not isinstance(a, torch.Tensor)], kwargs) for args, kwargs in lists]

    def forward(self, *given):
        out = []
        for tensors, (rest, kwargs) in zip(given, self.rest, strict=True):
            y = self.op(*tensors, *rest, **kwargs)
            out.extend(y if isinstance(y, tuple) else [y])
        return out


def results(module, lists, leaves: list[list[bool]]):
    given = [
        [a.clone().requires_grad_(leaf) for a, leaf in zip([a for a in args if isinstance(a, torch.Tensor)], which, strict=True)]
        for (args, _), which in zip(lists, leaves, strict=True)
    ]
    out = module(*given)
    wanted = [a for tensors in given for a in tensors if a.requires_grad]
    made = [y for y in out if y.requires_grad]
    gradients = torch.autograd.grad(made, wanted, [tangent(y) for y in made], allow_unused=True) if made and wanted else []
    return [y.detach() for y in out], list(gradients)


def far(got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    """Where they are of two classes, or not near."""
    if got.dtype.is_complex:
        got, want = torch.view_as_real(got), torch.view_as_real(want)
    assert got.dtype == want.dtype and got.shape == want.shape, f"{got.dtype}{list(got.shape)}, eager {want.dtype}{list(want.shape)}"
    if not want.dtype.is_floating_point:
        return got != want
    bad = got.isnan() != want.isnan()
    bad |= (got == 0) & (want == 0) & (got.signbit() != want.signbit())
    bad |= (got.isinf() | want.isinf()) & (got != want) & ~got.isnan() & ~want.isnan()
    tiny = torch.finfo(want.dtype).tiny
    g, w = got.double(), want.double()
    return bad | ((g - w).abs() > NEAR[want.dtype] * w.abs() + 2 * tiny) & g.isfinite() & w.isfinite()


def sweep(name: str, dtypes: list[torch.dtype]) -> list[str]:
    """What differs; "" first where it was not compiled."""
    op = OPERATIONS[name]
    lists, leaves, taken = [], [], []
    for dtype in dtypes:
        args, kwargs = arguments(op, dtype)
        grad = dtype.is_floating_point and op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
        which = [grad for a in args if isinstance(a, torch.Tensor)]
        try:
            results(Each(op, [(args, kwargs)]), [(args, kwargs)], [which])
        except Exception:
            if not grad:
                continue
            which = [False] * len(which)  # its gradient is none at these numbers
            try:
                results(Each(op, [(args, kwargs)]), [(args, kwargs)], [which])
            except Exception:
                continue
        lists.append((args, kwargs)), leaves.append(which), taken.append(dtype)
    if not lists:
        return []
    plain = Each(op, lists)
    wanted = results(plain, lists, leaves)
    ours = trainc.compile(Each(op, lists))
    try:
        got = results(ours, lists, leaves)
    except Exception as error:
        if len(dtypes) > 1:
            return [said for dtype in taken for said in sweep(name, [dtype])]
        return [] if "not compiled" in str(error) or isinstance(error, trainc.UserError) else [f"{dtypes[0]}: {type(error).__name__}: {error}"]
    found = []
    for what, gots, wants in zip(("result", "gradient"), got, wanted, strict=True):
        assert len(gots) == len(wants)
        for i, (g, w) in enumerate(zip(gots, wants, strict=True)):
            if g is None or w is None:
                if g is not w:
                    found.append(f"{what} {i}: {'None' if g is None else 'a tensor'}")
                continue
            bad = far(g, w)
            if bad.any():
                if g.dtype.is_complex:
                    g, w = torch.view_as_real(g), torch.view_as_real(w)
                at = bad.flatten().nonzero()[:, 0]
                places = ", ".join(f"[{k}] {g.flatten()[k].item()!r} for {w.flatten()[k].item()!r}" for k in at[:6].tolist())
                found.append(f"{what} {i} of {[str(t) for t in taken]}: {len(at)} of {bad.numel()}: {places}")
    return found


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", CHOSEN)
def test_as_eager(name: str, core, monkeypatch) -> None:
    monkeypatch.setattr(trainc.config, "fallback", False)
    op = OPERATIONS[name]
    found = sweep(name, [d for d in DTYPES if op.supports_dtype(d, "cpu")])
    assert not found, "\n".join(found)
