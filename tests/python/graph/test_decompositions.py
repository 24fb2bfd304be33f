"""What is written out as other operations before it is captured computes what eager computes."""

from __future__ import annotations

import pytest
import torch
from conftest import DOORS

import trainc

aten = torch.ops.aten


class Norm(torch.nn.Module):
    def __init__(self, update: bool, dtype: torch.dtype):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([1.0, -2.0, 0.5], dtype=dtype))
        self.bias = torch.nn.Parameter(torch.tensor([0.0, 1.0, 3.0], dtype=dtype))
        self.register_buffer("mean", torch.tensor([0.5, 0.0, -1.0], dtype=dtype))
        self.register_buffer("variance", torch.tensor([1.0, 2.0, 0.25], dtype=dtype))
        weights = torch.rand(5, 3, 7, generator=torch.Generator().manual_seed(2)) + 0.5  # or a bias learns nothing
        self.register_buffer("weights", weights)
        self.update = update

    def forward(self, x):
        operation = aten._batch_norm_with_update if self.update else aten._batch_norm_no_update
        return operation(x, self.weight, self.bias, self.mean, self.variance, 0.1, 1e-5)[0].square().mul(self.weights).sum()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("differentiated", [False, True])  # whether x wants a gradient: the others are made without it
@pytest.mark.parametrize("update", [True, False])
@pytest.mark.parametrize("door", DOORS)
def test_the_batch_norms_that_choose_a_library(door, update, differentiated, dtype, monkeypatch):
    monkeypatch.setattr(trainc.config, "fallback", False)
    x = torch.randn(5, 3, 7, generator=torch.Generator().manual_seed(1)).to(dtype)

    def run(through, dtype=dtype) -> list[torch.Tensor]:
        model, given = Norm(update, dtype), x.to(dtype).clone().requires_grad_(differentiated)
        through(model)(given).backward()
        grads = [model.weight.grad, model.bias.grad, *([given.grad] if differentiated else [])]
        return [*grads, model.mean, model.variance]

    def error(found: torch.Tensor, truth: torch.Tensor) -> float:
        return float((found - truth).norm() / truth.norm())

    rounding = torch.finfo(dtype).eps
    for mine, its, truth in zip(run(DOORS[door]), run(lambda model: model), run(lambda model: model, torch.float64), strict=True):
        assert mine.dtype == its.dtype and error(mine, truth) <= 1.1 * error(its, truth) + rounding
