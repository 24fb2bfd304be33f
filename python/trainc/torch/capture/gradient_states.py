"""What a step's body does with gradients that may be there from before it.

A body is traced as if there were none. So for each gradient it is followed what PyTorch may find where the trace finds none, and
whether anything that the body does depends on that. Later calls are held to it: either the body drops what is there, and so does
the call, or there must be nothing. And a compiled step leaves no gradient that it has updated a parameter with: who would find
one in PyTorch, the next step of this body or another one, is refused.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

import torch

from trainc.base.errors import NotCompiled

Event = Literal["added", "set", "dropped", "zeroed"]
Left = Literal["zeros", "value"]

# What may be there after an event, by what may have been there before it:
#   "before"  the trace has no gradient; PyTorch has that from before the step, if there is one
#   "sum"     the step's own, which PyTorch has added to that from before
#   "zeros"   the trace has none; PyTorch has zeros if one was there
#   "own"     nothing of it is left
# "added": a backward has added to it; "set": p.grad = another; "dropped": set to None; "zeroed": zero_grad(set_to_none=False).
_AFTER: dict[str, dict[Event, str]] = {
    "before": {"added": "sum", "set": "own", "dropped": "own", "zeroed": "zeros"},
    "sum": {"added": "sum", "set": "own", "dropped": "own", "zeroed": "own"},
    "zeros": {"added": "own", "set": "own", "dropped": "own", "zeroed": "zeros"},
    "own": {"added": "own", "set": "own", "dropped": "own", "zeroed": "own"},
}


class Want(enum.IntEnum):
    """What must hold of a gradient from before, for the trace to be what PyTorch would do."""

    NOTHING = 0
    NO_VALUE = 1  # there is none, or it is zeros
    NONE = 2  # there is none


# Of who looks at a gradient: an operation that reads it, an optimizer.
_WANTS = {"before": Want.NONE, "sum": Want.NO_VALUE, "zeros": Want.NONE, "own": Want.NOTHING}


def clash(want: Want, left: Left | None) -> bool:
    """Whether what a step leaves in PyTorch, and not when it is compiled, is what another one must not find."""
    return left is not None and want >= (Want.NONE if left == "zeros" else Want.NO_VALUE)


class GradientState:
    """Of one tensor's gradient, while the body runs."""

    def __init__(self) -> None:
        self.now = "before"
        self.is_dropped = False  # whether the body has dropped it, at any time
        self.of_reads = self.of_optimizers = Want.NOTHING
        self._sum_is_read = False

    @property
    def want(self) -> Want:
        return max(self.of_reads, self.of_optimizers)

    def after(self, event: Event) -> None:
        self.is_dropped = self.is_dropped or event in ("dropped", "zeroed") or event == "set" and self.now == "before"
        if event != "added" and self._sum_is_read:  # what was read is not what the step leaves
            self.of_reads = max(self.of_reads, Want.NO_VALUE)
        self.now = _AFTER[self.now][event]

    def read(self) -> None:
        """An operation of the body's looks at it. Whether it matters that a sum is read that stays tells the graph."""
        if self.now == "sum":
            self._sum_is_read = True
        else:
            self.of_reads = max(self.of_reads, _WANTS[self.now])

    def stepped(self) -> None:
        """An optimizer looks at it."""
        self.of_optimizers = max(self.of_optimizers, _WANTS[self.now])


@dataclass
class GradientsBefore:
    """What a call does of gradients from before, and what it asks of them. Inputs of the graph, and parameters of optimizers
    that are none."""

    drops: list[int] = field(default_factory=list)  # it sets them to None
    zeros: list[int] = field(default_factory=list)  # it fills them with zeros
    wants: dict[int, Want] = field(default_factory=dict)
    read: list[int] = field(default_factory=list)  # of these, those that an operation of the body's reads, and no optimizer
    left: dict[int, Left] = field(default_factory=dict)  # what PyTorch would leave, and the call does not
    others: list[tuple[torch.Tensor, GradientState]] = field(default_factory=list)

    def interface(self) -> tuple:
        return self.drops, self.zeros, sorted(self.wants), sorted(self.left.items()), len(self.others)


def gradients_before(
    states: dict[int, GradientState], others: Iterable[tuple[torch.Tensor, GradientState]], left: dict[int, Left | None]
) -> GradientsBefore:
    """`left`: of the inputs that were updated, what PyTorch leaves of their gradients. NotCompiled where that is what the next
    step of this very body must not find."""
    again = [states[i] for i, what in left.items() if clash(states[i].want, what)]
    if any(not state.is_dropped for state in again):
        raise NotCompiled("the step has no optimizer.zero_grad(): train_step consumes the gradients, so call it in the step")
    if any(state.of_reads is Want.NONE for state in again):
        raise NotCompiled(
            "the step reads the gradient of a parameter before zero_grad(): that of the step before, which a compiled "
            "step does not leave. Return from the step what you want to see of its gradients"
        )
    if again:
        raise NotCompiled(
            "the step leaves a gradient that it made after optimizer.step(): the next step's, which a compiled step does not "
            "leave. Let the step begin with what makes it"
        )
    return GradientsBefore(
        [i for i, state in states.items() if state.now == "own" or state.now == "zeros" and i in left],
        [i for i, state in states.items() if state.now == "zeros" and i not in left],
        {i: state.want for i, state in states.items() if state.want},
        [i for i, state in states.items() if state.of_reads and not state.of_optimizers],
        {i: what for i, what in left.items() if what is not None},
        list(others),
    )


__all__ = ["GradientState", "GradientsBefore", "Left", "Want", "clash", "gradients_before"]
