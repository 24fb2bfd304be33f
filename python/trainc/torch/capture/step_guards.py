"""What around a step's body changes what PyTorch would do, and is in no trace of the body: hooks, replaced methods, which
parameters an optimizer has. Looked at before every call."""

from __future__ import annotations

import operator
from typing import Any

import torch

from trainc.base.errors import NotCompiled
from trainc.torch import compat
from trainc.torch.compat import optimizer_post_hooks, optimizer_pre_hooks
from trainc.torch.optimizers import optimizer

Tensor = torch.Tensor


def check_optimizer(each: torch.optim.Optimizer) -> None:
    """NotCompiled where an optimizer's step is more than an update that is known."""
    name = type(each).__name__
    if optimizer.stays_torchs(each) or compat.has_step_hooks(each):
        raise NotCompiled(f"{name} with capturable or differentiable set, a tensor as a setting, or step hooks")
    if optimizer_pre_hooks or optimizer_post_hooks:
        raise NotCompiled("a hook is registered on the steps of all optimizers, and would not run: remove it")


class Methods:
    """Whether the optimizers' `step` and `zero_grad` are PyTorch's, or what a scheduler or trainc puts in their place."""

    def __init__(self, optimizers: list[torch.optim.Optimizer]):
        self._optimizers = optimizers
        self._known: list[Any] = []  # that were found to be

    def check(self) -> None:
        found = [
            method for each in self._optimizers for name in ("step", "zero_grad")
            for method in (each.__dict__.get(name), getattr(type(each), name))
        ]  # fmt: skip
        if len(found) == len(self._known) and all(map(operator.is_, found, self._known)):
            return
        for each in self._optimizers:
            if method := optimizer.replaced(each):
                name = f"{type(each).__name__}.{method}"
                raise NotCompiled(
                    f"{name} was replaced by a function of the program's, which would not run: do in the step what it does"
                )
        self._known = found


def check_tensors(tensors: list[Tensor], arguments: list[Tensor]) -> None:
    """NotCompiled where a tensor's gradient would go beyond the step: it has a hook, or was computed of something outside."""
    for tensor in tensors:
        if _goes_on(tensor):
            _refuse(tensor, "the model's")
    for tensor in arguments:
        if _goes_on(tensor):
            _refuse(tensor, "an argument's")


def _goes_on(tensor: Tensor) -> bool:
    return compat.has_gradient_hooks(tensor) or compat.has_accumulation_hooks(tensor) or tensor.grad_fn is not None


def _refuse(tensor: Tensor, whose: str) -> None:
    what = f"{whose} tensor of shape {list(tensor.shape)}"
    if tensor.grad_fn is not None:
        raise NotCompiled(
            f"{what} was computed outside of the step from what wants a gradient, which would not get it: detach() it, or "
            "compute it in the step"
        )
    raise NotCompiled(f"{what} has a gradient hook, which would not run: remove it, and change gradients in the step")


class Binding:
    """Which tensor of the modules each parameter of each optimizer is, as a number: a trace is of the very parameters."""

    def __init__(self, optimizers: list[torch.optim.Optimizer]):
        self._optimizers = optimizers
        self._known: list[tuple[list[int], list[Tensor], list[int]]] = []  # (sizes of groups, parameters, places)
        self._last: tuple[list[int], list[Tensor], list[Tensor], int] | None = None

    def number(self, tensors: list[Tensor]) -> int:
        groups = [group["params"] for each in self._optimizers for group in each.param_groups]
        sizes, parameters = list(map(len, groups)), [parameter for group in groups for parameter in group]
        if self._last is not None:
            old_sizes, old_parameters, old_tensors, number = self._last
            if sizes == old_sizes and _same(parameters, old_parameters) and _same(tensors, old_tensors):
                return number
        index = {id(tensor): i for i, tensor in enumerate(tensors)}
        places = [index.get(id(parameter), -1) for parameter in parameters]
        number = next(
            (i for i, (s, p, at) in enumerate(self._known) if s == sizes and at == places and _same(p, parameters)),
            len(self._known),
        )
        if number == len(self._known):
            self._known.append((sizes, parameters, places))
        self._last = sizes, parameters, list(tensors), number
        return number


def _same(some: list[Tensor], others: list[Tensor]) -> bool:
    return len(some) == len(others) and all(map(operator.is_, some, others))


class Unknown:
    """What stands in a step's trace for what later calls find otherwise: whatever reads it is refused."""

    def __init__(self, reason: str):
        self._reason = reason

    def __deepcopy__(self, memo: Any) -> Unknown:
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self.refuse()

    def refuse(self, *_: Any) -> Any:
        raise NotCompiled(self._reason)


class NotYet(Unknown):
    """For a setting that a scheduler sets after the step."""

    def __init__(self, name: str):
        super().__init__(
            f"the step reads `{name}` after scheduler.step(), which runs when the step is over: read it after the step"
        )


def check_result(structure: tuple) -> None:
    """NotCompiled where what the body returns (`structure.Flattener`) holds such a setting."""
    if structure[0] == "object" and issubclass(structure[1], Unknown):
        raise NotCompiled(structure[3][0][2])
    for child in structure[3] if structure[0] in ("node", "object") else ():
        check_result(child)


for _name in (
    "float int index bool complex len iter getitem contains call str repr format hash round abs neg pos trunc floor ceil "
    "eq ne lt le gt ge add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow divmod"
).split():
    setattr(Unknown, f"__{_name}__", Unknown.refuse)


__all__ = ["Binding", "Methods", "NotYet", "Unknown", "check_optimizer", "check_result", "check_tensors"]
