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


def channels_second(tensors: Sequence[torch.Tensor], views: Views) -> list[torch.Tensor]:
    """As aten's convolutions want them, [N, C, size...]: views, channels last in memory."""
    return [tensor.movedim(-1, 1) for tensor in viewed(tensors, views)]


def geometry(*, kernel: list[int], stride: list[int], padding: list[int], dilation: list[int]) -> tuple:
    """What aten's convolutions want behind their tensors."""
    return stride, padding, dilation, False, [0] * len(kernel), 1


def convolution(image: torch.Tensor, weight: torch.Tensor, *, views: Views, **form: list[int]) -> torch.Tensor:
    """[N, size..., C] and [O, taps..., C] -> [N, places..., O]. `form`: as `geometry` takes it."""
    image, weight = channels_second((image, weight), views)
    return torch.ops.aten.convolution(image, weight, None, *geometry(**form)).movedim(1, -1)


def convolution_weight(image: torch.Tensor, grad: torch.Tensor, *, views: Views, **form: list[int]) -> torch.Tensor:
    """[N, size..., C] and the gradient of the result, [N, places..., O] -> the gradient of the weight, [O, C, taps...]."""
    image, grad = channels_second((image, grad), views)
    weight = image.new_empty((grad.shape[1], image.shape[1], *form["kernel"]))  # its shape is asked for
    return torch.ops.aten.convolution_backward(grad, image, weight, None, *geometry(**form), [False, True, False])[1]


OPERATIONS = {f"framework.{f.__name__}": f for f in (product, convolution, convolution_weight)}


def flops(target: str, inputs: Sequence[Sequence[int]], result: Sequence[int], kwargs: dict[str, Any]) -> int:
    """Floating-point operations of a call on inputs of these shapes."""
    viewed_as = viewed([torch.empty(shape, device="meta") for shape in inputs], kwargs["views"])
    if target == "framework.product":
        return 2 * math.prod(result) * viewed_as[0].shape[2]
    taps = math.prod(kwargs["kernel"]) * viewed_as[0].shape[-1]
    places = math.prod(viewed_as[1].shape) if target == "framework.convolution_weight" else math.prod(result)
    return 2 * places * taps


__all__ = ["OPERATIONS", "convolution", "convolution_weight", "flops", "product", "viewed"]
