"""The backward of a norm of half-precision values takes statistics as they were computed, not rounded to that type."""

import pytest
import torch
from torch import nn

import trainc

NORMS = {
    "layer": lambda d: nn.LayerNorm(6, dtype=d),
    "group": lambda d: nn.GroupNorm(2, 4, dtype=d),
    "batch": lambda d: nn.BatchNorm1d(4, dtype=d),
    "instance": lambda d: nn.InstanceNorm1d(4, affine=True, dtype=d),
}


def gradients(kind: str, of, door: str | None, dtype: torch.dtype, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """float64, of the sum of squares of a norm's values: what is left of sums that nearly cancel."""
    norm = NORMS[kind](of)
    x = x.to(dtype, copy=True).requires_grad_()
    model = {"compile": trainc.compile, "backend": lambda m: torch.compile(m, backend="trainc"), None: lambda m: m}[door](norm)
    model(x).double().pow(2).sum().backward()
    return {"x": x.grad.double(), **{name: p.grad.double() for name, p in norm.named_parameters()}}


@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("mixed", [True, False], ids=["float32 parameters", "half parameters"])
@pytest.mark.parametrize("door", ["compile", "backend"])
def test_statistics_are_not_rounded(kind, half, mixed, door, monkeypatch):
    monkeypatch.setattr(trainc.config, "fallback", False)
    # Values that lie close together beside their mean, which has few digits in a half type.
    x = (0.5 + 0.02 * torch.randn(8, 4, 6, generator=torch.Generator().manual_seed(0))).to(half)
    of = torch.float32 if mixed else half
    truth, eager, ours = (gradients(kind, *how, x) for how in (
        (torch.float64, None, torch.float64), (of, None, half), (of, door, half)))  # fmt: skip
    for name, exact in truth.items():
        error, eagers = ((found[name] - exact).norm().item() for found in (ours, eager))
        assert error <= 1.1 * eagers + 1e-3 * exact.norm().item(), name


@pytest.mark.parametrize("kind", ["layer", "group"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_squares_that_overflow_are_no_zeros(kind, dtype, core, strict):
    """Who looks for NaN, to see that training diverges or to skip a step, finds it where eager has it."""
    make = {"layer": lambda: nn.LayerNorm(64, dtype=dtype), "group": lambda: nn.GroupNorm(2, 64, dtype=dtype)}[kind]
    values = torch.randn(4, 64, generator=torch.Generator().manual_seed(0)).to(dtype)
    for size in (1.0, 1e15, torch.finfo(dtype).max ** 0.5 * 1e3, torch.finfo(dtype).max / 100):
        found = []
        for compiled in (False, True):
            model, x = make(), (values * size).requires_grad_()
            y = (trainc.compile(model) if compiled else model)(x)
            y.square().sum().backward()
            found.append([y.detach(), x.grad, model.weight.grad])
        torch.testing.assert_close(found[1], found[0], equal_nan=True, rtol=1e-4, atol=1e-4)
