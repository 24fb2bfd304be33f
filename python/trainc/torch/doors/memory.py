"""What a model and its optimizers hold, in bytes, and what `trainc.compile` was told of memory (base/memory.py)."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch

from trainc.base.memory import Limit, Memory, checked
from trainc.torch.optimizers import FORMULAS


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


class ModelSettings:
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


__all__ = ["ModelSettings", "bytes_of", "fixed"]
