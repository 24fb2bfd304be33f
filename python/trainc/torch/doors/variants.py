"""Which of the states that it was seen in a program's module is in: its attributes' values, its tensors and their types."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from trainc.base.errors import NotCompiled
from trainc.torch import numbers
from trainc.torch.capture import distributed
from trainc.torch.doors.signature import stored_type, tensor_type
from trainc.torch.guards.reads import Reads
from trainc.torch.guards.state import ModuleState, StateGuard

Tensor = torch.Tensor

MAX_VARIANTS = 256  # states of one module: attributes' values, parameters' types, training flags
CHEAP_VARIANTS = 4  # those that are recognised without reading the module: training, evaluation, and two more


class Variants:
    """Each state has a number, which is part of a call's key. `model()` gives the module; `forget()` is called where its
    structure is another than before, and all numbers are new."""

    def __init__(self, model: Callable[[], torch.nn.Module], moving: Callable[[], Sequence[numbers.Slot]], forget: Any):
        self._model, self._moving, self._forget = model, moving, forget
        self.state: ModuleState | None = None
        self.tensors: list[Tensor] = []  # the module's, as they were found last
        self.reachable: set[int] = set()  # the addresses of tensors that forward may reach beside its arguments
        self.seen: list[tuple[list, list]] = []  # (values, tensors' types), by number
        self._named: set[str] | None = None  # attributes that what was compiled reads; None: any, or nothing is compiled yet
        self._any = False  # whether it may read any
        self.last = 0  # the number that was found last
        self._state_guards: dict[int, StateGuard] = {}  # by number: how to see, for little, that the module is in it

    def find(self) -> tuple[int, list[Tensor]]:
        """The number of the module's state, and its tensors."""
        for number, guard in self._state_guards.items():
            if guard():
                self.tensors, self.last = guard.tensors, number
                return number, guard.tensors
        state = self.state
        if state is None or not state.is_current():
            state = self._walk()
        state.refuse_hooks()
        self.reachable.update(map(id, state._found))
        known = len(self.seen)
        number, tensors = self._number(state)
        self.tensors, self.last = tensors, number
        # One that holds other tensors is of the past, and would keep them alive.
        self._state_guards = {n: u for n, u in self._state_guards.items() if all(map(operator.is_, u.tensors, tensors))}
        if number < known:  # for the second time
            self._state_guards.pop(number, None)
            while len(self._state_guards) >= CHEAP_VARIANTS:
                self._state_guards.pop(next(iter(self._state_guards)))
            self._state_guards[number] = StateGuard(self.state, tensors)
        return number, tensors

    def let_move(self) -> None:
        """Other numbers of the program move than before: they are no part of a state."""
        self._state_guards = {}
        if self.state is not None:
            self.state.let_move(self._moving())

    def learn(self, reads: Sequence[Reads]) -> None:
        """Traces of the state that was found last are compiled. NotCompiled where they read what was taken for unread, and were
        therefore not shown as it is."""
        found = [each.named() for each in reads]
        self._any |= None in found
        self._named = None if self._any else set(self._named or ()).union(*found)
        came = self.state.read_alone(self._named)
        self._state_guards = {}
        for values, _ in self.seen:
            self.state.leave_out(values)
        if came:  # what was compiled before reads them not, whatever they were
            self.seen[self.last] = (self.state.values(), self.seen[self.last][1])
            self.state.check_seen(came)

    def numbers_between(self, old: int, new: int) -> list[tuple[Any, Any]] | None:
        """The numbers in which two states differ; None where they differ in anything else."""
        (old_values, old_types), (new_values, new_types) = self.seen[old], self.seen[new]
        if old_types != new_types or len(old_values) != len(new_values):
            return None
        found: list[tuple[Any, Any]] = []
        for i, (a, b) in enumerate(zip(old_values, new_values, strict=True)):
            if a != b:
                if (inside := self.state.number_at(i, a, b)) is None:
                    return None
                found += inside
        return found

    def _number(self, state: ModuleState) -> tuple[int, list[Tensor]]:
        tensors, values = state.tensors(), state.values()
        if any(map(is_lazy, tensors)):
            raise NotCompiled("this call makes the parameters of a lazy module", in_pytorch=True)
        types = [stored_type(t) for t in tensors]
        for i, (seen_values, seen_types) in enumerate(self.seen):
            if seen_types == types and seen_values == values:
                return i, tensors
        if not state.covers_values():
            state = self._walk()
            tensors, values = state.tensors(), state.values()
            types = [stored_type(t) for t in tensors]
        for tensor in tensors:
            tensor_type(tensor)  # may refuse
        if len(self.seen) >= MAX_VARIANTS:
            raise NotCompiled("an attribute of a module has another value at nearly every call")
        self.seen.append((values, types))
        return len(self.seen) - 1, tensors

    def _walk(self) -> ModuleState:
        if found := distributed.beside_forward(self._model()):
            raise NotCompiled(found)
        self._state_guards = {}
        self.state = ModuleState(self._model())
        self.state.let_move(self._moving())
        self.state.read_alone(self._named)
        self.seen.clear()
        self._forget()
        return self.state


__all__ = ["Variants"]
