"""What a training step needs at its peak, known before it runs; and `memory=`, the most that it may need.

The figures are the plan's: its arenas have fixed sizes. With gradients, optimizer state, results, the model's own tensors and the
batch they are all that a step adds to what Python and the libraries hold.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from trainc import config
from trainc.errors import UserError
from trainc.optimizers import FORMULAS


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
        return self.fixed + self.saved + self.temporary + self.results

    @property
    def growth(self) -> int:
        """What training adds to a model and a batch that are there."""
        return self.total - self.model - self.batch

    def with_footprint(self, footprint: dict[str, int]) -> Memory:
        return dataclasses.replace(self, **footprint)


def bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    """Of the storages, each once."""
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors if t.numel()}.values())


def fixed(
    tensors: list[torch.Tensor], arguments: list[torch.Tensor], optimizers: Iterable[torch.optim.Optimizer], gradients: bool
) -> Memory:
    """Of a model's `tensors`; `gradients`: one for each parameter stays until the optimizer's step."""
    leaves = {id(t): t for t in tensors if t.requires_grad and t.is_leaf}
    return Memory(
        model=bytes_of(tensors),
        gradients=sum(t.numel() * t.element_size() for t in leaves.values()) if gradients else 0,
        optimizer=sum(map(state_bytes, optimizers)),
        batch=bytes_of(arguments),
    )


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """What its state will be, or is already."""
    there = sum(t.numel() * t.element_size() for s in optimizer.state.values() for t in s.values() if isinstance(t, torch.Tensor))
    formula = next((FORMULAS[kind] for kind in type(optimizer).__mro__ if kind in FORMULAS), None)
    coming = 0 if formula is None else sum(
        formula.state_bytes(formula.variant(group, p.dtype, p.shape), p)
        for group in optimizer.param_groups for p in group["params"] if p.requires_grad
    )  # fmt: skip
    return max(there, coming)


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


class Settings:
    """What trainc.compile was told: the limit, whose state counts, whether to measure, and whether gradients are consumed as they
    are made."""

    def __init__(
        self, memory: Any = None, optimizer: torch.optim.Optimizer | None = None, tune: str = "fast", fuse_step: bool = False
    ):
        checked(memory)
        self.memory, self.tune, self._keeps = memory, tune, not fuse_step
        self._optimizer = weakref.ref(optimizer) if optimizer is not None else lambda: None

    def fixed(self, tensors: list[torch.Tensor], arguments: list[torch.Tensor]) -> Memory:
        optimizer = self._optimizer()
        return fixed(
            tensors, arguments, [] if optimizer is None else [optimizer], gradients=self._keeps and torch.is_grad_enabled()
        )

    def limit(self, fixed_part: Memory) -> Limit | None:
        return None if self.memory is None else Limit(self.memory, fixed_part)


__all__ = ["Limit", "Memory", "Settings", "bytes_of", "checked", "fixed", "readable"]
