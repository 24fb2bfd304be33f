"""PyTorch's own operators as steps of a plan: what tune="max" measures beside a contraction's kernel
(src/schedule/framework_call.h finds the call).

An operation gets the plan's memory as it lies, and the views through which it is looked at: a list of ["reshape", shape] and
["permute", order], the first first. Images are channels last, [N, size..., C]; weights, so viewed, [O, taps..., C].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

Views = Sequence[Sequence[tuple[str, Sequence[int]]]]


def viewed(tensors: Sequence[torch.Tensor], views: Views) -> list[torch.Tensor]:
    found = []
    for tensor, steps in zip(tensors, views, strict=True):
        for what, numbers in steps:
            tensor = tensor.reshape(numbers) if what == "reshape" else tensor.permute(numbers)
        found.append(tensor)
    return found


def product(lhs: torch.Tensor, rhs: torch.Tensor, *, views: Views) -> torch.Tensor:
    """[B, M, K] and [B, N, K] -> [B, M, N]."""
    lhs, rhs = viewed((lhs, rhs), views)
    return torch.mm(lhs[0], rhs[0].t())[None] if lhs.shape[0] == 1 else torch.bmm(lhs, rhs.transpose(1, 2))


def convolution(
    image: torch.Tensor,
    weight: torch.Tensor,
    *,
    views: Views,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
) -> torch.Tensor:
    """[N, size..., C] and [O, taps..., C] -> [N, places..., O]."""
    image, weight = (tensor.movedim(-1, 1) for tensor in viewed((image, weight), views))
    none = [0] * len(kernel)
    return torch.ops.aten.convolution(image, weight, None, stride, padding, dilation, False, none, 1).movedim(1, -1)


def convolution_weight(
    image: torch.Tensor,
    grad: torch.Tensor,
    *,
    views: Views,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
) -> torch.Tensor:
    """[N, size..., C] and the gradient of the result, [N, places..., O] -> the gradient of the weight, [O, C, taps...]."""
    image, grad = (tensor.movedim(-1, 1) for tensor in viewed((image, grad), views))
    weight = image.new_empty((grad.shape[1], image.shape[1], *kernel))  # its shape is asked for
    none, mask = [0] * len(kernel), [False, True, False]
    return torch.ops.aten.convolution_backward(grad, image, weight, None, stride, padding, dilation, False, none, 1, mask)[1]


OPERATIONS = {f"library.{f.__name__}": f for f in (product, convolution, convolution_weight)}


def flops(target: str, inputs: Sequence[Sequence[int]], result: Sequence[int], kwargs: dict[str, Any]) -> int:
    """Floating-point operations of a call on inputs of these shapes."""
    viewed_as = viewed([torch.empty(shape, device="meta") for shape in inputs], kwargs["views"])
    if target == "library.product":
        return 2 * math.prod(result) * viewed_as[0].shape[2]
    taps = math.prod(kwargs["kernel"]) * viewed_as[0].shape[-1]
    places = math.prod(viewed_as[1].shape) if target == "library.convolution_weight" else math.prod(result)
    return 2 * places * taps


__all__ = ["OPERATIONS", "convolution", "convolution_weight", "flops", "product", "viewed"]
