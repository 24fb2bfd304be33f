"""An optimizer's step beside PyTorch's own: the same parameters, gradients and state, in copies."""

from __future__ import annotations

import collections
import copy
import dataclasses
from typing import Any

import torch

from trainc.torch.device import HOST
from trainc.torch.optimizers import formula_of
from trainc.torch.optimizers.optimizer import attach
from trainc.torch.optimizers.state import unhooked
from trainc.torch.verify import bounds
from trainc.torch.verify.bounds import Distance
from trainc.torch.verify.case import without_cache

Tensor = torch.Tensor
Optimizer = torch.optim.Optimizer
PLAIN = (int, float, bool, str, type(None))


def beside(optimizer: Optimizer, wide: bool = False) -> tuple[Optimizer, dict[int, Tensor]]:
    """An optimizer of the same kind and state over copies of the parameters that have a gradient, and these by the parameters'
    ids. `wide`: in float64."""
    copies: dict[int, Tensor] = {}
    state: Any = collections.defaultdict(dict)
    groups = []
    for group in optimizer.param_groups:
        own = [p for p in group["params"] if p.grad is not None]
        for p in own:
            mine = copies[id(p)] = _copy(p, wide).requires_grad_()
            mine.grad = _copy(p.grad, wide)
            if p in optimizer.state:
                state[mine] = _state(optimizer, optimizer.state[p], wide)
        groups.append({**group, "params": [copies[id(p)] for p in own]})
    other = object.__new__(type(optimizer))
    other.__dict__.update(optimizer.__dict__, param_groups=groups, state=state)
    return other, copies


def step(optimizer: Optimizer) -> None:
    """torch's own, without the hooks that the program's step runs."""
    unhooked(type(optimizer).step)(optimizer)


def _copy(tensor: Tensor, wide: bool) -> Tensor:
    tensor = tensor.detach()
    return tensor.double() if wide and tensor.is_floating_point() and tensor.dtype != torch.float64 else tensor.clone()


def _state(optimizer: Optimizer, state: dict, wide: bool) -> dict:
    formula = formula_of(optimizer)
    numbers = () if formula is None else formula.numbers  # PyTorch's kernels want these in the type that they have
    return {k: _copy(v, wide and k not in numbers) if isinstance(v, Tensor) else copy.copy(v) for k, v in state.items()}


def values(parameter: Tensor, state: dict) -> dict[str, Tensor]:
    """What a step writes of one parameter, by name; "" is itself."""
    return {"": parameter.detach()} | {k: v for k, v in sorted(state.items()) if isinstance(v, Tensor)}


def values_of(made: tuple[Optimizer, dict[int, Tensor]] | None, like: Tensor) -> dict[str, Tensor] | None:
    """Of the copy of `like`."""
    if made is None:
        return None
    optimizer, copies = made
    return values(copies[id(like)], optimizer.state[copies[id(like)]])


def distances(ours: dict[str, Tensor], eager: dict[str, Tensor], truth: dict[str, Tensor] | None) -> dict[str, Distance]:
    """Of one parameter's values after the step."""
    if ours.keys() != eager.keys():
        return {"": Distance(float("inf"), True, float("inf"), 0.0)}
    exact = truth or {}
    return {name: bounds.distance(value, eager[name], exact.get(name)) for name, value in ours.items()}


def in_pytorch(before: Optimizer, wide: bool = False) -> tuple[Optimizer, dict[int, Tensor]] | None:
    """PyTorch's step of copies of what `before` holds, in its own types or in float64; None where that cannot be."""
    other, copies = beside(before, wide)
    try:
        step(other)
    except Exception:  # not every kernel takes every type
        if not wide:
            raise
        return None
    return other, copies


# ---- one parameter's update by itself -------------------------------------------------------------------------------


@dataclasses.dataclass
class Update:
    """One parameter's update, for a report. `settings`: of its group."""

    name: str
    optimizer: str  # a class of torch.optim
    settings: dict[str, Any]
    parameter: Tensor
    gradient: Tensor
    state: dict[str, Any]

    device = HOST
    tune = "fast"

    @staticmethod
    def of(name: str, optimizer: Optimizer, group: dict, parameter: Tensor, state: dict) -> Update:
        """`parameter`, with its gradient, and `state` are copies, as they were before the step."""
        settings = {k: v for k, v in group.items() if all(type(x) in PLAIN for x in (v if isinstance(v, tuple) else [v]))}
        kind = next(each.__name__ for each in type(optimizer).__mro__ if each.__module__.startswith("torch.optim"))
        return Update(name, kind, settings, parameter.detach(), parameter.grad, state)

    def distances(self) -> list[tuple[int, Distance]]:
        """Of the compiled step."""
        ours, p = self._made()
        eager, truth = in_pytorch(ours), in_pytorch(ours, wide=True)
        with without_cache():
            attach(ours)
            ours.step()
        found = distances(values(p, ours.state[p]), values_of(eager, p), values_of(truth, p))
        return list(enumerate(found.values()))

    def result_name(self, place: int) -> str:
        return ["the parameter", *sorted(k for k, v in self.state.items() if isinstance(v, Tensor))][place]

    def _made(self) -> tuple[Optimizer, Tensor]:
        p = self.parameter.clone().requires_grad_()
        p.grad = self.gradient.clone()
        made = getattr(torch.optim, self.optimizer)([p], **_accepted(self.optimizer, self.settings))
        made.param_groups[0].update(self.settings)
        if self.state:
            made.state[p] = {k: v.clone() if isinstance(v, Tensor) else v for k, v in self.state.items()}
        return made, p


def _accepted(kind: str, settings: dict[str, Any]) -> dict[str, Any]:
    return {key: settings[key] for key in ("lr",) if key in settings}


def take(parameter: Tensor, optimizer: Optimizer, eager: tuple[Optimizer, dict[int, Tensor]], like: Tensor) -> None:
    """The parameter and its state become what PyTorch's step made of the copy of `like`."""
    theirs, copies = eager
    with torch.no_grad():
        parameter.copy_(copies[id(like)])
        state = optimizer.state[parameter]
        for name, value in theirs.state[copies[id(like)]].items():
            if isinstance(value, Tensor) and isinstance(state.get(name), Tensor) and state[name].shape == value.shape:
                state[name].copy_(value)  # in place: kernels and the program may hold it
            else:
                state[name] = value


__all__ = ["Update", "beside", "distances", "in_pytorch", "take", "values", "values_of"]
