"""An optimizer's state, made by torch's own code, as a step finds it: what the last step found, and the numbers of steps."""

from __future__ import annotations

import ctypes
import itertools
import operator

import torch
from torch.utils.weak import WeakIdKeyDictionary

from trainc.places import contents, same_contents
from trainc.state import Alike

Tensor = torch.Tensor


class Known:
    """What a step found of a group whose parameters all went into kernels, and whether the next step finds it again."""

    def __init__(self, optimizer: torch.optim.Optimizer, group: dict, lists: list[list[Tensor]]):
        params, grads, *columns, self.steps = lists
        self._given, self._amsgrad, self._state = list(group["params"]), group["amsgrad"], optimizer.state
        having = set(map(id, params))
        self._has_grad = [id(p) in having for p in self._given]
        self._dicts = [self._state, *[self._state[p] for p in params]]
        self._contents = contents(self._dicts)
        self.params, self.states = params, [column for column in columns if column]
        self.written = [*params, *itertools.chain.from_iterable(self.states)]
        kinds = {(p.device, p.dtype) for p in params}
        self.kind = kinds.pop() if len(kinds) == 1 else None  # of all parameters
        self.scalar = scalar_of(self.steps)
        self._alike = Alike([*self.written, *self.steps, *grads])

    def gradients(self, optimizer: torch.optim.Optimizer, group: dict) -> list[Tensor] | None:
        """The gradients, where the group's parameters and their state are the same objects as then, and all types the same."""
        given = group["params"]
        if (
            optimizer.state is not self._state or group["amsgrad"] != self._amsgrad or len(given) != len(self._given)
            or not all(map(operator.is_, given, self._given)) or not same_contents(self._dicts, self._contents)
        ):  # fmt: skip
            return None
        grads = [p.grad for p in given]
        if [grad is not None for grad in grads] != self._has_grad:
            return None
        grads = [grad for grad in grads if grad is not None]
        return grads if self._alike([*self.written, *self.steps, *grads]) else None


SCALARS = {torch.float32: ctypes.c_float, torch.float64: ctypes.c_double}


def scalar_of(steps: list[Tensor]) -> type | None:
    """The C type of all these numbers, where they lie in the host's memory and have one that is known."""
    kinds = {SCALARS.get(step.dtype) if step.is_cpu and type(step) is Tensor else None for step in steps}
    return kinds.pop() if len(kinds) == 1 else None


class Steps:
    """The numbers in the optimizer's `step` tensors. Those on a GPU (`fused=True`) are read once and then counted here: to read
    one is to wait for the device."""

    def __init__(self) -> None:
        self._known = WeakIdKeyDictionary()  # step tensor -> (version, number)

    def number(self, step: Tensor) -> float:
        if step.is_cpu:
            return step.item()
        known = self._known.get(step)
        if known is None or known[0] != step._version:
            known = self._known[step] = (step._version, step.item())
        return known[1]

    def count(self, steps: list[Tensor], scalar: type | None = None) -> list[float]:
        """One more, in the tensors and here; gives the numbers. `scalar`: `scalar_of` the steps, where that is known."""
        if scalar := scalar or scalar_of(steps):
            places = [scalar.from_address(step.data_ptr()) for step in steps]
            for place in places:
                place.value += 1
            torch.autograd.graph.increment_version(steps)
            return [place.value for place in places]
        if not steps:
            return []
        numbers = [self.number(step) + 1 for step in steps]
        torch._foreach_add_(steps, 1.0)
        self._known.update(
            {step: (step._version, number) for step, number in zip(steps, numbers, strict=True) if not step.is_cpu}
        )
        return numbers


__all__ = ["Known", "Steps"]
