"""Operations that are written out as others before they are captured: only where eager computes the very same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Tensor = torch.Tensor
aten = torch.ops.aten


def decompositions() -> dict[Any, Callable[..., Any]]:
    """By operator, as AOTAutograd takes them."""
    return {
        aten._batch_norm_with_update_functional.default: _batch_norm_with_update,
        aten._batch_norm_no_update.default: _batch_norm_no_update,
        aten.batch_norm_backward.default: _batch_norm_backward,
    }


# PyTorch's second family of batch norms chooses a library and keeps that one's reserve. On a CPU there is none to choose, and
# the family computes as the first one does.


def _batch_norm_with_update(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, variance: Tensor, momentum: float, eps: float
) -> tuple[Tensor, ...]:
    """(result, mean of the batch, 1 / its deviation, reserve, new running mean, new running variance)"""
    made = aten._native_batch_norm_legit_functional(x, weight, bias, mean, variance, True, momentum, eps)
    return *made[:3], _reserve(x), *made[3:]


def _batch_norm_no_update(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, variance: Tensor, momentum: float, eps: float
) -> tuple[Tensor, ...]:
    """(result, two empty tensors, reserve)"""
    return *aten._native_batch_norm_legit_no_training(x, weight, bias, mean, variance, momentum, eps), _reserve(x)


def _batch_norm_backward(*arguments: Any) -> tuple[Tensor | None, ...]:
    """(gradient of x, of the weight, of the bias), each None where its output_mask says so"""
    return aten.native_batch_norm_backward(*arguments[:-1])  # the last is the reserve


def _reserve(x: Tensor) -> Tensor:
    return x.new_empty(0, dtype=torch.uint8)


__all__ = ["decompositions"]
