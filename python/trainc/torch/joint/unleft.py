"""Gradients that one compiled step does not leave, and another one would add to.

A body that begins with zero_grad() leaves its gradients behind. A compiled one does not: who would read them is another step of
the same parameters, which adds to them before it clears them. That one is refused.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable

import torch

from trainc.base.errors import UserError


class Unleft:
    """Of one compiled step, which holds its parameters. `unleft`: those whose gradients its body leaves, and it does not;
    `wanted`: those that must have no gradient from before."""

    def __init__(self, unleft: Iterable[torch.Tensor], wanted: Iterable[torch.Tensor]):
        self.ran = False
        self._unleft, self._wanted = set(map(id, unleft)), set(map(id, wanted))
        self._before: list[weakref.ref[Unleft]] = []  # those whose gradients its body would add to
        for other in list(_steps):
            for step, before in ((self, other), (other, self)):
                if not step._wanted.isdisjoint(before._unleft):
                    step._before.append(weakref.ref(before))
        _steps.add(self)

    def check(self) -> None:
        if any((before := each()) is not None and before.ran for each in self._before):
            raise UserError(
                "trainc.train_step: another step has updated these parameters, whose gradients it leaves in PyTorch for this one "
                "to add to, and not when it is compiled: call optimizer.zero_grad() at the end of both, or where both begin"
            )


_steps: weakref.WeakSet[Unleft] = weakref.WeakSet()

__all__ = ["Unleft"]
