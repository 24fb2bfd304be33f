"""A compiled backward that hands out its gradients in stages, each as soon as the plan has made it.

A node of autograd's graph gives all its gradients at once, so DistributedDataParallel would begin to reduce the first bucket when
the last gradient is made. Under DDP a compiled call is therefore a chain of nodes: the first runs the plan until the gradients of
the last parameters are there, and the node after it, which autograd comes to when those are accumulated and DDP's hooks have run,
runs the plan on. It is one plan, whose steps and numbers are the same.

The groups follow the model's parameters from the last to the first, as DDP's own buckets do: whatever the order of the plan's
steps, a stage waits for its gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from trainc.torch import compat

Tensor = torch.Tensor
LEAST = 1 << 20  # bytes of gradients worth a stage, as DDP's first bucket; less where its buckets are smaller
MOST = 16  # stages


class Shared:
    """What the stages of one call know of each other: the gradients that are still to be given, by the inputs' places."""

    def __init__(self) -> None:
        self.gradients: Callable[[Sequence[int]], list[Tensor | None]] | None = None

    def give(self, places: Sequence[int], last: bool) -> list[Tensor | None]:
        given = self.gradients(places)
        if last:
            self.gradients = None  # lets go of the run
        return given


class Stage(torch.autograd.Function):
    """Gives the gradients of its own inputs when the stage before it, which has its token, has given its own."""

    @staticmethod
    def forward(ctx: Any, shared: Shared, places: list[int], token: Tensor | None, *inputs: Tensor) -> Tensor:
        ctx.shared, ctx.places, ctx.last = shared, places, token is None
        ctx.set_materialize_grads(False)
        return inputs[0].new_empty(0)

    @staticmethod
    def backward(ctx: Any, _token: Tensor | None) -> tuple:
        return None, None, None, *ctx.shared.give(ctx.places, ctx.last)


def chained(groups: Sequence[Sequence[int]], inputs: Sequence[Tensor]) -> tuple[Shared, Tensor]:
    """The stages of all groups but the first, in their order in the backward; the token ties them to the call's own node, which
    gives the gradients of the first."""
    shared, token = Shared(), None
    for group in reversed(groups[1:]):
        token = Stage.apply(shared, list(group), token, *[inputs[i] for i in group])
    return shared, token


def groups_of(places: Sequence[int], inputs: Sequence[Tensor], bucket: int) -> list[list[int]]:
    """Of the inputs that get a gradient: those of each stage, the first of the backward first. `bucket`: bytes that are reduced
    together. What is no parameter leads to what came before the model, and comes last."""
    parameters = [i for i in places if inputs[i].is_leaf]
    least = max(min(LEAST, bucket), sum(inputs[i].nbytes for i in parameters) // MOST)
    groups: list[list[int]] = [[]]
    size = 0
    for i in reversed(parameters):
        if size >= least:
            groups.append([])
            size = 0
        groups[-1].append(i)
        size += inputs[i].nbytes
    groups[-1] += [i for i in places if not inputs[i].is_leaf]
    return groups


def may_be_staged(inputs: Sequence[Tensor], places: Sequence[int]) -> bool:
    """Whether nothing of the program runs where a gradient is accumulated: it may update the parameter, which the plan may have
    yet to read."""
    return not any(compat.has_gradient_hooks(inputs[i]) or compat.has_accumulation_hooks(inputs[i]) for i in places)


__all__ = ["Shared", "chained", "groups_of", "may_be_staged"]
