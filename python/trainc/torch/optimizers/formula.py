"""What trainc knows of one optimizer of PyTorch: a subclass of `Formula`, with one instance in the registry.

The rule for the numbers is eager's: `update` has the operations of torch.optim's single-tensor variant (the one that eager
takes on a CPU unless it is told otherwise) in their order. The foreach and fused variants differ from it, and from each
other, in single roundings; one kernel stands for all three (but for ASGD's, whose foreach variant has other infinities). What
depends on a setting or on the number of the step is computed on the host in double precision, as eager does, and given to the
kernel as scalars, so that a scheduler never recompiles.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from trainc.torch.optimizers.settings import Remembered

Tensor = torch.Tensor


@dataclass(frozen=True)
class Variant:
    """What one kernel is made for. `flags`: the settings that change which operations there are. `shape`: of the parameter, where
    the formula is not elementwise."""

    formula: Formula
    dtype: torch.dtype | None
    flags: frozenset[str]
    shape: tuple[int, ...] | None = None

    def has(self, flag: str) -> bool:
        return flag in self.flags

    @property
    def states(self) -> tuple[str, ...]:
        return self.formula.states(self)

    @property
    def scalars(self) -> tuple[str, ...]:
        return self.formula.scalars(self)

    @property
    def tensors(self) -> int:
        """Parameter, gradient, states."""
        return 2 + len(self.states)

    @property
    def in_place(self) -> list[int]:
        """The inputs that the results replace: all tensors but the gradient."""
        return [0, *range(2, self.tensors)]

    def update(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The formula over parameter, gradient, states, scalars, in this order; gives the new parameter and states."""
        param, grad = inputs[:2]
        state = SimpleNamespace(**dict(zip(self.states, inputs[2 : self.tensors], strict=True)))
        scalar = SimpleNamespace(**dict(zip(self.scalars, inputs[self.tensors :], strict=True)))
        return self.formula.update(self, param, grad, state, scalar)

    def values(self, group: dict, count: Count) -> list[float]:
        """The scalars of a step."""
        values = self.formula.values(self, group, count)
        return [values[name] for name in self.scalars]


@dataclass(frozen=True)
class Count:
    """A parameter's numbers (`Formula.numbers`) before a step and after it. `first`: the step makes a state that was
    missing."""

    old: tuple[float, ...]
    new: tuple[float, ...]
    first: bool = False


class Formula:
    """To add an optimizer: a subclass of this in a file of its own, its line in the registry, its rows in `test_optimizer.py`."""

    classes: tuple[type[torch.optim.Optimizer], ...]  # whose step this is; a subclass may do more in its own
    numbers: tuple[str, ...] = ("step",)  # entries of the state that are one number each, which the host computes with
    elementwise = True  # one kernel for parameters of any shape, which `train_step` and `fuse_step` have in their plans

    def flags(self, group: dict) -> frozenset[str]:
        """What of a group's settings is a `Variant`'s flag: here what `with_decay` asks, to which a formula adds its own."""
        return chosen(
            maximize=group["maximize"], weight_decay=group.get("weight_decay", 0) != 0,
            decoupled=group.get("decoupled_weight_decay", False),
        )  # fmt: skip

    @functools.cached_property
    def known_flags(self) -> Callable[[dict], frozenset[str]]:
        """`flags`, computed once for the same settings."""
        return Remembered(self.flags)

    def states(self, v: Variant) -> tuple[str, ...]:
        """The entries of the state that the kernel reads and writes."""
        raise NotImplementedError

    def scalars(self, v: Variant) -> tuple[str, ...]:
        """The names of those that the variant reads."""
        raise NotImplementedError

    def values(self, v: Variant, group: dict, count: Count) -> dict[str, float]:
        """At least `scalars(v)`, in double precision."""
        raise NotImplementedError

    def update(self, v: Variant, param: Tensor, grad: Tensor, state: Any, scalar: Any) -> tuple[Tensor, ...]:
        """(new parameter, *new states), as plain PyTorch; changes nothing."""
        raise NotImplementedError

    def advance(self, group: dict, old: tuple[float, ...], dtypes: Sequence[torch.dtype]) -> tuple[float, ...]:
        """What eager leaves in `numbers`, of tensors of these types."""
        return tuple(rounded(number + 1, dtype) for number, dtype in zip(old, dtypes, strict=True))

    def start(self, name: str, param: Tensor) -> Tensor:
        """A state that eager makes in its first step and not before it (other states are made by torch's `_init_group`)."""
        raise KeyError(name)

    def settings(self, group: dict, params: list[Tensor]) -> dict:
        """The group, with what eager reads of its parameters (those with a gradient) in the place of a default."""
        return group

    def state_bytes(self, v: Variant, param: Tensor) -> int:
        return len(v.states) * param.numel() * param.element_size()

    def shapes(self, v: Variant, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Of the states, for a parameter's."""
        return [shape for _ in v.states]

    def title(self, v: Variant) -> str:
        return self.classes[0].__name__

    def variant(self, group: dict, dtype: torch.dtype | None, shape: Sequence[int]) -> Variant:
        return _variant(self, dtype, self.known_flags(group), None if self.elementwise else tuple(shape))


class Averaging(Formula):
    """One whose state begins with `torch.lerp`'s average of the gradients, by the first of `betas`; mostly, that of their
    squares is next."""

    def flags(self, group: dict) -> frozenset[str]:
        return super().flags(group) | chosen(lerp_from_end=from_end(1 - group["betas"][0]))

    def states(self, v: Variant) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq")


_variant = functools.lru_cache(Variant)  # of the few that a program has


NUMBERS = {torch.float32: ctypes.c_float, torch.float64: ctypes.c_double}  # the types of numbers that eager makes


def rounded(number: float, dtype: torch.dtype) -> float:
    """What becomes of it in a tensor of this type."""
    if dtype in NUMBERS:
        return NUMBERS[dtype](number).value
    return torch.tensor(number, dtype=torch.float64, device="cpu").to(dtype).item()


def chosen(**flags: Any) -> frozenset[str]:
    """The names of those that are set."""
    return frozenset(name for name, value in flags.items() if value)


def with_decay(v: Variant, param: Tensor, grad: Tensor, scalar: Any) -> tuple[Tensor, Tensor]:
    """Parameter and gradient after `maximize` and weight decay."""
    if v.has("maximize"):
        grad = -grad
    if v.has("weight_decay"):
        if v.has("decoupled"):
            return param * scalar.decay, grad
        grad = grad + param * scalar.decay
    return param, grad


def decay_of(v: Variant, group: dict) -> float:
    """The scalar of `with_decay`."""
    return 1 - group["lr"] * group["weight_decay"] if v.has("decoupled") else group["weight_decay"]


def from_end(weight: float) -> bool:
    """torch.lerp counts from the far end where the weight is 0.5 or more; its kernel is then given what it lacks, below zero."""
    return weight >= 0.5


def lerp(v: Variant, start: Tensor, end: Tensor, weight: Tensor) -> Tensor:
    return end + weight * (end - start) if v.has("lerp_from_end") else start + weight * (end - start)


def lerp_weight(v: Variant, weight: float) -> float:
    """The scalar of `lerp`."""
    return weight - 1 if v.has("lerp_from_end") else weight
