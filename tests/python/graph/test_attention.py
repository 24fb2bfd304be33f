"""Attention, in whatever spelling, is one kernel forward and one backward, as near to the truth as eager's."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional

import trainc
from trainc.base import records, report

BATCH, HEADS, LENGTH, WIDTH = 2, 4, 40, 24


class Library(nn.Module):
    """`scaled_dot_product_attention` with these arguments."""

    def __init__(self, **arguments):
        super().__init__()
        self.arguments = arguments

    def forward(self, q, k, v, mask):
        arguments = {name: mask if value == "mask" else value for name, value in self.arguments.items()}
        return functional.scaled_dot_product_attention(q, k, v, **arguments)


class Written(nn.Module):
    """Softmax attention by hand."""

    def forward(self, q, k, v, mask):
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        return torch.softmax(scores.masked_fill(~mask, float("-inf")), -1) @ v


class Einsum(nn.Module):
    """Heads next to last, a softmax of exp and sum, and the division after the products' mask."""

    def forward(self, q, k, v, mask):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        scores = torch.einsum("bqhe,bkhe->bhqk", q, k) * 0.2
        scores = torch.where(mask, scores, torch.finfo(scores.dtype).min)
        weights = (scores - scores.amax(-1, keepdim=True)).exp()
        return torch.einsum("bhqk,bkhe->bhqe", weights / weights.sum(-1, keepdim=True), v)


class Plain(nn.Module):
    def forward(self, q, k, v, mask):
        return torch.softmax(q.matmul(k.mT), dim=3).matmul(v)


SPELLINGS = {
    "library": (Library(), 1),
    "library causal": (Library(is_causal=True), 1),
    "library mask": (Library(attn_mask="mask"), 1),
    "library grouped": (Library(is_causal=True, enable_gqa=True), 2),
    "written": (Written(), 1),
    "einsum": (Einsum(), 1),
    "plain": (Plain(), 1),
}


def tensors(grouped: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(BATCH, heads, LENGTH, WIDTH) for heads in (HEADS, HEADS // grouped, HEADS // grouped, HEADS)]
    return [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]


def results(attention, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """The result, then the gradients of q, k and v."""
    *qkv, gradient = inputs
    mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    mask[5, 2] = False
    y = attention(*qkv, mask)
    return [y.detach(), *torch.autograd.grad(y, qkv, gradient.detach())]


def kernels_of(model) -> list[str]:
    plans = [plan for compilation in records.of(model) for plan in report.plans_of_a_step(compilation)]
    return [step["name"] for plan in plans for step in plan.report()["steps"]]


@pytest.mark.parametrize("name", SPELLINGS)
def test_every_spelling_is_one_kernel_each_way_and_as_near_to_the_truth_as_eager(name, monkeypatch):
    monkeypatch.setattr(trainc.config, "fallback", False)
    attention, grouped = SPELLINGS[name]
    compiled = trainc.compile(copy.deepcopy(attention))
    ours, eager, size = 4 * [0.0], 4 * [0.0], 4 * [0.0]
    for seed in range(4):
        truth = results(attention, tensors(grouped, torch.float64, seed))
        for sums, tried in ((ours, compiled), (eager, attention)):
            found = results(tried, tensors(grouped, seed=seed))
            for i, (value, exact) in enumerate(zip(found, truth, strict=True)):
                sums[i] += (value.double() - exact).square().sum().item()
        for i, exact in enumerate(truth):
            size[i] += exact.square().sum().item()
    names = kernels_of(compiled)
    assert sum("matmul_chain" in kernel for kernel in names) == 2, names
    assert not [kernel for kernel in names if kernel.startswith("contract")]
    for place, mine, theirs, whole in zip(("y", "q", "k", "v"), ours, eager, size, strict=True):
        assert math.sqrt(mine) <= 1.1 * math.sqrt(theirs) + 1e-9 * math.sqrt(whole), place


@pytest.mark.parametrize("causal", [False, True])
def test_dropout_draws_eagers_masks(causal):
    attention = Library(dropout_p=0.25, is_causal=causal)
    compiled = trainc.compile(copy.deepcopy(attention))
    torch.manual_seed(11)
    expected = results(attention, tensors(1))
    torch.manual_seed(11)
    for found, wanted in zip(results(compiled, tensors(1)), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_bf16_under_autocast():
    compiled = trainc.compile(Written())
    truth = results(Written(), tensors(1, torch.float64))

    def error(found):
        return [(value.double() - exact).norm() / exact.norm() for value, exact in zip(found, truth, strict=True)]

    with torch.autocast("cpu", torch.bfloat16):
        ours, eager = error(results(compiled, tensors(1))), error(results(Written(), tensors(1)))
    assert all(mine <= 1.5 * theirs for mine, theirs in zip(ours, eager, strict=True)), (ours, eager)


@pytest.mark.parametrize("columns", [40, 41])  # 41: half of the last pair of bf16 is empty
@pytest.mark.parametrize("causal", [False, True])
def test_of_bf16_probabilities_are_rounded_before_they_are_multiplied_as_eagers_are(causal, columns):
    """Every product is one of bf16 then. The gradient of the scores is rounded, too: that of q has eager's error."""
    attention = Library(is_causal=causal)
    compiled = trainc.compile(copy.deepcopy(attention))
    generator = torch.Generator().manual_seed(0)
    q, k, v, dy = (torch.randn(BATCH, HEADS, columns, WIDTH, generator=generator).bfloat16() for _ in range(4))

    def found(tried, dtype):
        qkv = [x.to(dtype).requires_grad_() for x in (q, k, v)]
        y = tried(*qkv, None)
        return [y.detach(), *torch.autograd.grad(y, qkv, dy.to(dtype))]

    truth, ours, eager = found(attention, torch.float64), found(compiled, torch.bfloat16), found(attention, torch.bfloat16)
    for exact, mine, theirs in zip(truth, ours, eager, strict=True):
        assert (mine.double() - exact).norm() <= 1.3 * (theirs.double() - exact).norm()

    scores = q.double() @ k.double().mT / math.sqrt(WIDTH)
    if causal:
        scores = scores.masked_fill(~torch.ones(columns, columns, dtype=torch.bool).tril(), float("-inf"))
    rounded = scores.softmax(-1).bfloat16().double()
    for mine, expected in ((ours[0], rounded @ v.double()), (ours[3], rounded.mT @ dy.double())):
        assert (mine == expected.bfloat16()).double().mean() > 0.98


def test_the_probabilities_are_not_kept():
    compiled = trainc.compile(Library(is_causal=True))
    results(compiled, tensors(1))
    plans = [plan for compilation in records.of(compiled) for plan in report.plans_of_a_step(compilation)]
    saved = max(plan.report()["saved_bytes"] for plan in plans)
    assert 0 < saved < BATCH * HEADS * LENGTH * LENGTH * 4


def test_rows_that_see_nothing_are_eagers():
    mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool)
    mask[3] = False
    attention, (q, k, v, _) = Library(attn_mask="mask"), tensors(1)
    torch.testing.assert_close(trainc.compile(copy.deepcopy(attention))(q, k, v, mask), attention(q, k, v, mask), equal_nan=True)
