"""What a training step needs at its peak, known before it runs; and `memory=`, the most that it may need.

The figures are the plan's: its arenas have fixed sizes. With gradients, optimizer state, results, the model's own tensors and the
batch they are all that a step adds to what Python and the libraries hold.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from trainc.base import config
from trainc.base.errors import UserError


@dataclasses.dataclass
class Memory:
    """Bytes at the peak of a step, by what they are for."""

    model: int = 0  # parameters, buffers and plain tensors
    gradients: int = 0
    optimizer: int = 0  # its state, once the first step has made it
    batch: int = 0  # the call's tensors
    saved: int = 0  # from the forward to the backward
    temporary: int = 0
    results: int = 0
    again_flops: int = 0  # computed again in the backward, so that less is saved

    @property
    def fixed(self) -> int:
        """What no plan can change."""
        return self.model + self.gradients + self.optimizer + self.batch

    @property
    def total(self) -> int:
        """All of it: what `memory=` limits."""
        return self.fixed + self.saved + self.temporary + self.results

    @property
    def growth(self) -> int:
        """What training adds to a model and a batch that are there."""
        return self.total - self.model - self.batch

    def with_footprint(self, footprint: dict[str, int]) -> Memory:
        """The same, with what the plans need: bytes {saved, temporary, results}, and {again_flops}."""
        return dataclasses.replace(self, **footprint)


# ---- the limit --------------------------------------------------------------------------------------------------------


def checked(memory: Any) -> int | float | None:
    """`memory=` as bytes, or as a share of what the step would need without a limit."""
    if memory is None:
        return None
    if isinstance(memory, str):
        if (size := config.size_of(memory)) is not None:
            return size
    elif isinstance(memory, (int, float)) and not isinstance(memory, bool) and memory > 0:
        if memory <= 1:
            return float(memory)
        if isinstance(memory, int):
            return memory
    raise UserError(
        f'memory={memory!r} is no size: write "4GB" or a number of bytes; or a share from 0 to 1 of what the step would need '
        "without it"
    )


class Limit:
    """`memory=` of one signature: what the plan may need beside what is fixed."""

    def __init__(self, given: Any, fixed_part: Memory):
        self.given, self.fixed = given, fixed_part

    @property
    def key(self) -> list:
        """For the name of a stored plan. Each thread has scratch memory of its own."""
        from trainc import _core

        return [checked(self.given), self.fixed.fixed, _core.thread_count()]

    def room(self, needed: Callable[[], int]) -> int:
        """Bytes for what the plan saves, its temporaries and its results; `needed()`: without a limit."""
        limit = checked(self.given)
        if isinstance(limit, float):
            limit = int(limit * (self.fixed.fixed + needed()))
        return limit - self.fixed.fixed

    def check(self, footprint: dict[str, int], room: int) -> None:
        plan = footprint["saved"] + footprint["temporary"] + footprint["results"]
        if plan <= room:
            return
        least = self.fixed.fixed + plan
        f = self.fixed
        raise UserError(
            f"memory={self.given!r} cannot be met: {readable(least)} is the least for this batch, with all computed again that "
            f"can be ({readable(plan)} of the step itself; {readable(f.model)} the model, {readable(f.gradients)} gradients, "
            f"{readable(f.optimizer)} optimizer state). Try memory={least_text(least)!r}, or a smaller batch."
        )


def readable(size: float) -> str:
    for factor, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size:.0f} B"


def least_text(size: int) -> str:
    """A size to write, not below `size`."""
    return f"{-(-size // 1_000_000)}MB" if size >= 100_000_000 else f"{-(-size // 1000)}kB"


__all__ = ["Limit", "Memory", "checked", "readable"]
