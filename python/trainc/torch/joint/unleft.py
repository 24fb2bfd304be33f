"""Gradients that one compiled step does not leave, and that another one must not find.

A body that begins with zero_grad() leaves its gradients behind. A compiled one does not: who would find them is another step of
the same parameters, which adds to them, reads them or updates by them before it clears them. That one is refused.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping

from trainc.base.errors import UserError
from trainc.torch.capture.gradient_states import Left, Want, clash


class Unleft:
    """Of one compiled step, which holds its parameters; by their ids. `left`: what its body leaves of their gradients, and it
    does not; `wants`: what must hold of those from before."""

    def __init__(self, left: Mapping[int, Left], wants: Mapping[int, Want]):
        self.ran = False
        self._left, self._wants = left, wants
        self._before: list[weakref.ref[Unleft]] = []  # those that leave what this must not find
        for other in list(_steps):
            for step, before in ((self, other), (other, self)):
                if any(clash(step._wants[i], before._left[i]) for i in step._wants.keys() & before._left.keys()):
                    step._before.append(weakref.ref(before))
        _steps.add(self)

    def check(self) -> None:
        if any((before := each()) is not None and before.ran for each in self._before):
            raise UserError(
                "trainc.train_step: another step has updated these parameters, whose gradients it leaves in PyTorch for this one "
                "to find, and not when it is compiled: call optimizer.zero_grad() at the end of both, or where both begin"
            )


_steps: weakref.WeakSet[Unleft] = weakref.WeakSet()

__all__ = ["Unleft"]
