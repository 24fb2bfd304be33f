"""An optimizer's state, made by torch's own code, as a step finds it: what the last step found, and the numbers in it."""

from __future__ import annotations

import collections
import functools
import inspect
import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from trainc.base.arithmetic import flushes_denormals
from trainc.base.errors import UserError
from trainc.torch import compat
from trainc.torch.guards.overlap import Apart
from trainc.torch.guards.places import contents, contents_guard
from trainc.torch.guards.state import TypeGuard
from trainc.torch.optimizers import NUMBERS, Count, Formula

Tensor = torch.Tensor


# ---- torch's own code -----------------------------------------------------------------------------------------------


@functools.cache
def _lists_of(kind: type[torch.optim.Optimizer]) -> int:
    """How many lists `_init_group` fills, the parameters and the gradients first."""
    return len(inspect.signature(compat.init_group(kind)).parameters) - 2


def init_group(optimizer: torch.optim.Optimizer, group: dict) -> tuple[list[Tensor], list[Tensor]]:
    """(parameters that have a gradient, gradients), once torch has made the state that they lack."""
    lists: list[list[Any]] = [[] for _ in range(_lists_of(type(optimizer)))]
    compat.init_group(type(optimizer))(optimizer, group, *lists)
    return lists[0], lists[1]


def stand_in(optimizer: torch.optim.Optimizer, group: dict, params: list[Tensor], **attributes: Any) -> torch.optim.Optimizer:
    """An optimizer of some parameters of one group, with the state of `optimizer`."""
    other = object.__new__(type(optimizer))
    other.__dict__.update(optimizer.__dict__, param_groups=[{**group, "params": params}], **attributes)
    return other


def torchs_step(optimizer: torch.optim.Optimizer, group: dict, params: list[Tensor]) -> None:
    """torch's own step, for these parameters of a group."""
    if not params:
        return
    unhooked(type(optimizer).step)(stand_in(optimizer, group, params))


def unhooked(step: Callable[..., Any]) -> Callable[..., Any]:
    """torch's step without the wrapper that runs step hooks, which ours has run."""
    return step.__wrapped__ if getattr(step, "hooked", False) else step


def make_state(optimizer: torch.optim.Optimizer, group: dict, parameter: Tensor) -> dict:
    """torch's own initial state; it looks at parameters that have a gradient."""
    before, parameter.grad = parameter.grad, parameter.detach()
    try:
        init_group(optimizer, {**group, "params": [parameter]})
    finally:
        parameter.grad = before
    return optimizer.state[parameter]


def fresh_state(optimizer: torch.optim.Optimizer, group: dict, parameter: Tensor) -> dict:
    """The state that torch would make; the optimizer's own stays as it is."""
    return make_state(stand_in(optimizer, group, [parameter], state=collections.defaultdict(dict)), group, parameter)


def fresh_numbers(optimizer: torch.optim.Optimizer, group: dict, like: Tensor) -> dict:
    """The same, of a parameter with no elements: for its numbers."""
    return fresh_state(optimizer, group, torch.empty(0, dtype=like.dtype, device=like.device, requires_grad=True))


# ---- what the last step found ---------------------------------------------------------------------------------------


class GroupGuard:
    """What a step found of a group whose parameters all went into kernels, and whether the next step finds it again."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, group: dict, formula: Formula, rows: list[Sequence[Tensor]],
        numbers: list[list[Tensor]], columns: list[Column],
    ):  # fmt: skip
        """`columns`: of the `numbers`."""
        self.params, grads, self.states = [row[0] for row in rows], [row[1] for row in rows], [row[2:] for row in rows]
        self._formula, self._flags, self._flushes = formula, formula.known_flags(group), flushes_denormals()
        self._given, self._state = list(group["params"]), optimizer.state
        having = set(map(id, self.params))
        self._has_grad = [id(p) in having for p in self._given]
        dicts = [self._state, *[self._state[p] for p in self.params if p in self._state]]
        self._same = contents_guard(dicts, contents(dicts))
        self.written = [*self.params, *itertools.chain.from_iterable(self.states)]
        kinds = {(p.device, p.dtype) for p in self.params}
        self.kind = kinds.pop() if len(kinds) == 1 and formula.elementwise else None  # of all parameters
        self._numbers = list(itertools.chain.from_iterable(numbers))
        self.columns, self.apart = columns, Apart()
        self.dtypes = [column[0].dtype for column in numbers]
        self._type_guard = TypeGuard([*self.written, *self._numbers, *grads])

    def gradients(self, optimizer: torch.optim.Optimizer, group: dict) -> list[Tensor] | None:
        """The gradients, where the group's parameters and their state are the same objects as then, and all types the same."""
        given = group["params"]
        if (
            optimizer.state is not self._state or self._formula.known_flags(group) != self._flags
            or len(given) != len(self._given) or not all(map(operator.is_, given, self._given))
            or not self._same() or flushes_denormals() != self._flushes
            or not all([column.is_there() for column in self.columns])
        ):  # fmt: skip
            return None
        grads = [p.grad for p in given]
        if [grad is not None for grad in grads] != self._has_grad:
            return None
        grads = [grad for grad in grads if grad is not None]
        return grads if self._type_guard([*self.written, *self._numbers, *grads]) else None


# ---- numbers --------------------------------------------------------------------------------------------------------


def scalar_of(numbers: list[Tensor]) -> type | None:
    """The C type of all these numbers, where they lie in the host's memory as they are, and have one that is known."""
    kinds = {NUMBERS.get(n.dtype) if type(n) is Tensor and n.is_cpu and not n.is_neg() else None for n in numbers}
    return kinds.pop() if len(kinds) == 1 else None


class Numbers:
    """The numbers in an optimizer's state (`Formula.numbers`). Those on a GPU (`fused=True`) are read once and then known
    here: to read one is to wait for the device."""

    def __init__(self) -> None:
        self._known = WeakIdKeyDictionary()  # tensor -> (version, number)

    def read(self, number: Tensor) -> float:
        if not isinstance(number, torch.Tensor):
            raise UserError(f"trainc: an optimizer's state holds {number!r} in the place of a tensor, which PyTorch refuses, too")
        if number.is_cpu:
            return number.item()
        known = self._known.get(number)
        if known is None or known[0] != number._version:
            known = self._known[number] = (number._version, number.item())
        return known[1]

    def column(self, numbers: list[Tensor]) -> Column:
        return Column(self, numbers)

    def write(self, numbers: list[Tensor], values: list[float]) -> None:
        if any(number.is_neg() for number in numbers):  # which PyTorch writes one by one alone
            for number, value in zip(numbers, values, strict=True):
                number.fill_(value)
            return
        for value in set(values):
            alike = [number for number, its in zip(numbers, values, strict=True) if its is value or its == value]
            torch._foreach_zero_(alike)
            torch._foreach_add_(alike, value)
        self._known.update(
            {n: (n._version, value) for n, value in zip(numbers, values, strict=True) if not n.is_cpu}
        )


def are_apart(numbers: list[Tensor]) -> bool:
    """Whether each has memory of its own. What is one number of several parameters, eager counts once for each of them."""
    return len(set(map(_address, numbers))) == len(numbers)


def _address(number: Tensor) -> int:
    return number.data_ptr() if type(number) is Tensor else id(number)


class Column:
    """One of the numbers, of many parameters."""

    def __init__(self, known: Numbers, numbers: list[Tensor]):
        scalar = scalar_of(numbers)
        self._known, self._numbers = known, numbers
        self._addresses = list(map(_address, numbers))
        self._places = None if scalar is None else [scalar.from_address(address) for address in self._addresses]

    def is_there(self) -> bool:
        """Whether the numbers lie where they lay when this was made."""
        return list(map(_address, self._numbers)) == self._addresses

    def __len__(self) -> int:
        return len(self._numbers)

    def read(self) -> list[float]:
        if self._places is None:
            return [self._known.read(number) for number in self._numbers]
        return [place.value for place in self._places]

    def fill(self, value: float) -> None:
        if self._places is None:
            self._known.write(self._numbers, [value] * len(self))
            return
        for place in self._places:
            place.value = value
        torch.autograd.graph.increment_version(self._numbers)

    def write(self, values: list[float]) -> None:
        if self._places is None:
            self._known.write(self._numbers, values)
            return
        for place, value in zip(self._places, values, strict=True):
            place.value = value
        torch.autograd.graph.increment_version(self._numbers)


class Counted:
    """The numbers of some parameters of a group: `counts`, one a parameter, tell what they are and what a step makes of them;
    `all`: the one of all parameters, where there is one."""

    def __init__(self, formula: Formula, group: dict, columns: list[Column], dtypes: list[torch.dtype], firsts: list[bool]):
        self._columns = columns
        olds = list(zip(*[column.read() for column in columns], strict=True)) if columns else [()] * len(firsts)
        found = list(zip(olds, firsts, strict=True))
        made = {each: count_of(formula, group, *each, dtypes) for each in set(found)}
        self.counts = [made[each] for each in found]
        self.all = self.counts[0] if len(made) == 1 else None

    def advance(self) -> None:
        if self.all is None:
            self._write([count.new for count in self.counts])
            return
        for column, value in zip(self._columns, self.all.new, strict=bool(self._columns)):
            column.fill(value)

    def go_back(self, those: set[int]) -> None:
        """For parameters that were not updated."""
        self._write([count.old if i in those else count.new for i, count in enumerate(self.counts)])

    def _write(self, rows: list[tuple[float, ...]]) -> None:
        for column, values in zip(self._columns, zip(*rows, strict=True), strict=bool(self._columns)):
            column.write(list(values))


def count_of(formula: Formula, group: dict, old: tuple[float, ...], first: bool, dtypes: list[torch.dtype]) -> Count:
    """`dtypes`: of the numbers."""
    return Count(old, formula.advance(group, old, dtypes), first)


__all__ = [
    "Column", "Counted", "GroupGuard", "Numbers", "are_apart", "count_of", "fresh_numbers", "fresh_state", "init_group",
    "torchs_step", "unhooked",
]  # fmt: skip
