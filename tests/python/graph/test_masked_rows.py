"""Attention of rows that see nothing: eager's fused kernel gives 0, others what their formula gives; so does what is
compiled, gradients included."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import trainc

INF = float("inf")
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
NEAR = {torch.float32: 2e-5, torch.float64: 1e-10, torch.bfloat16: 4e-2, torch.float16: 5e-3}


class Library(nn.Module):
    def __init__(self, **arguments):
        super().__init__()
        self.arguments = arguments

    def forward(self, q, k, v, mask):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, **self.arguments)


class Math(nn.Module):
    def forward(self, q, k, v, mask):
        with sdpa_kernel(SDPBackend.MATH):
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


class Written(nn.Module):
    """NaN in eager: exp(-inf - -inf)."""

    def forward(self, q, k, v, mask):
        s = q @ k.transpose(-1, -2) * 0.3
        s = s.masked_fill(~mask, -INF) if mask.dtype is torch.bool else s + mask
        return torch.softmax(s, -1) @ v


class Finite(nn.Module):
    """A mean over all columns in eager: every score is the same."""

    def forward(self, q, k, v, mask):
        s = q @ k.transpose(-1, -2) * 0.3
        least = torch.finfo(s.dtype).min
        s = s.masked_fill(~mask, least) if mask.dtype is torch.bool else torch.where(mask < 0, least, s)
        return torch.softmax(s, -1) @ v


SPELLINGS = {"library": Library(), "grouped": Library(enable_gqa=True), "math": Math(), "written": Written(), "finite": Finite()}


def masks(rows: int, columns: int) -> dict[str, torch.Tensor]:
    seen = torch.rand(rows, columns, generator=torch.Generator().manual_seed(rows)) > 0.3
    seen[0], seen[rows // 2], seen[-1] = False, False, False
    seen[1, : columns // 2] = False  # blocks of columns alone
    none = torch.zeros_like(seen)
    per_batch = torch.stack([seen, none])[:, None]
    return {"rows": seen, "all": none, "a batch": per_batch}


def run(module, q, k, v, mask, gradient):
    given = [x.clone().requires_grad_() for x in (q, k, v)]
    mask = mask.clone().requires_grad_(mask.requires_grad)
    y = module(*given, mask)
    leaves = [*given, mask] if mask.requires_grad else given
    return [y.detach(), *torch.autograd.grad(y, leaves, gradient)]


def same(got, wanted, near: float) -> None:
    for i, (g, w) in enumerate(zip(got, wanted, strict=True)):
        assert torch.equal(g.isnan(), w.isnan()), f"{i}: NaN at {g.isnan().sum()} places, eager at {w.isnan().sum()}"
        torch.testing.assert_close(g, w, rtol=near, atol=near, equal_nan=True)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("additive", [False, True], ids=["boolean", "additive"])
@pytest.mark.parametrize("rows, columns", [(5, 5), (37, 600)])
def test_rows_that_see_nothing(spelling, additive, rows, columns, core, strict):
    plain = SPELLINGS[spelling]
    for dtype in FLOATS if rows == 5 else FLOATS[:1]:
        heads = 1 if spelling == "grouped" else 2
        q, gradient = (torch.randn(2, 2, rows, 8).to(dtype) for _ in range(2))
        k, v = (torch.randn(2, heads, columns, 8).to(dtype) for _ in range(2))
        ours = trainc.compile(copy.deepcopy(plain))
        few = ["rows"] if dtype is not torch.float32 else list(masks(rows, columns))
        for name, mask in ((name, masks(rows, columns)[name]) for name in few):
            if additive:
                mask = torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, -INF)
            wanted = run(plain, q, k, v, mask, gradient)
            got = run(ours, q, k, v, mask, gradient)
            try:
                same(got, wanted, NEAR[dtype])
            except AssertionError as error:
                raise AssertionError(f"{dtype}, {name}: {error}") from None


@pytest.mark.parametrize("form", ["3 axes", "a mask with a gradient", "dropout", "more rows than columns", "no_grad"])
def test_other_kernels_of_eager(form, core):
    """Eager's choice of kernel depends on rank, dropout and who wants a gradient."""
    mask = masks(9, 7)["rows"]
    shape = (2,) if form == "3 axes" else (2, 2)
    q, k, v, gradient = (torch.randn(*shape, n, 8) for n in (9, 7, 7, 9))
    plain = Library(dropout_p=0.5) if form == "dropout" else Library()
    ours = trainc.compile(copy.deepcopy(plain))
    if form == "a mask with a gradient":
        mask = torch.zeros(mask.shape).masked_fill(~mask, -INF).requires_grad_()
    if form == "more rows than columns":
        plain = ours = None
        causal = Library(is_causal=True)
        for model in (causal, trainc.compile(copy.deepcopy(causal))):
            found = run(lambda q, k, v, _, model=model: model(q, k, v, None), q, k, v, mask, gradient)
            plain, ours = (found, None) if plain is None else (plain, found)
        return same(ours, plain, 2e-5)
    results = []
    for model in (plain, ours):
        for _ in range(2):
            torch.manual_seed(3)
            if form == "no_grad":
                with torch.no_grad():
                    results.append([model(q, k, v, mask)])
            else:
                results.append(run(model, q, k, v, mask, gradient))
    same(results[2], results[0], 2e-5)
    same(results[3], results[1], 2e-5)
