"""What Python does with the numbers of one trace: remembered while it is traced, done again for later values."""

from __future__ import annotations

import contextlib
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from trainc.base.errors import NotCompiled
from trainc.torch.numbers.node import Id, Node
from trainc.torch.numbers.operands import Operands
from trainc.torch.numbers.slots import Constant, Slot
from trainc.torch.numbers.standin import Number

ROOM = 32  # numbers that one plan takes: those that are given, and those that Python computes of them
Step = tuple[Callable[..., Any], tuple]  # a function and its operands: an Id is a number of the program


class Program:
    """What Python computes of the numbers of one trace (`made`), and what it asks of them (`guards`). Only while it is traced,
    and of the thread that traces it: to others, and later, what stands in a number's place has a float's arithmetic."""

    def __init__(self, slots: Sequence[Slot]):
        self.slots = list(slots)
        self.values: list[float] = [slot.get() for slot in slots]
        self.made: list[Step] = []
        self.guards: list[tuple[Callable[..., Any], tuple, bool]] = []
        self.constants: set[int] = set()  # numbers that are given, and whose value was taken
        self.inputs: list[int] = []  # numbers that the graph takes, in the order in which they lie in its input
        self.vector: int = -1  # the place of that input among the graph's
        self.mixed = False  # whether it computes of numbers and of symbolic sizes together
        self.reads: Any = None  # the walk (reads.Reads) over what the functions that ran can reach
        self.text = ""  # the fingerprint of its graph, with these values as constants
        self._known: dict[tuple, Number] = {}
        self._asked: set[tuple] = set()
        self._thread: int | None = threading.get_ident()
        self.numbers = [self._number(i) for i in range(len(self.values))]
        self.operands = Operands(lambda: [*self.numbers, *self._known.values()])

    def _number(self, i: int) -> Number:
        return Number(Node(self, Id(i), self.values[i]))

    # -- while the program is traced

    def listens(self) -> bool:
        return self._thread == threading.get_ident()

    def close(self) -> None:
        """The trace is over."""
        self._thread = None

    def take(self, *operands: Any) -> None:
        """The values of these numbers are in the trace from now on."""
        for each in operands:
            if type(each) is Id:
                if each < len(self.slots):
                    self.constants.add(int(each))
                else:
                    self.take(*self.made[each - len(self.slots)][1])

    def taken(self, *operands: Any) -> None:
        if self.listens():
            self.take(*operands)

    def value(self, operand: Any) -> Any:
        return self.values[operand] if type(operand) is Id else operand

    def derive(self, function: Callable[..., Any], *operands: Any) -> Any:
        if not self.listens():
            return function(*map(self.value, operands))
        key = (function, *map(_token, operands))
        if (known := self._known.get(key)) is not None:
            return known
        try:
            result = function(*map(self.value, operands))
        except Exception:  # the program may catch it
            self.take(*operands)
            raise
        if type(result) is not float:
            self.take(*operands)
            return result
        self.made.append((function, operands))
        self.values.append(result)
        self._known[key] = number = self._number(len(self.values) - 1)
        return number

    def ask(self, function: Callable[..., Any], *operands: Any) -> bool:
        outcome = function(*map(self.value, operands))
        key = (function, *map(_token, operands))
        if self.listens() and key not in self._asked:
            self._asked.add(key)
            self.guards.append((function, operands, outcome))
        return outcome

    def with_size(self, what: str) -> NotCompiled:
        self.mixed = self.mixed or self.listens()
        return NotCompiled(f"{what} of a number and a symbolic size")

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """The numbers are where the program reads them. What the program itself puts there stays."""
        held = [(slot, number, slot.get()) for slot, number in zip(self.slots, self.numbers, strict=True) if slot.path is None]
        for _, number, before in held:
            number.node.original = before
        try:
            for slot, number, _ in held:
                slot.put(number)
            with self.operands.active():
                yield
        finally:
            for slot, number, before in held:
                if slot.get() is number:
                    slot.put(before)

    def argument(self, path: tuple) -> Number:
        return next(number for slot, number in zip(self.slots, self.numbers, strict=True) if slot.path == path)

    def path_of(self, number: Number) -> tuple | None:
        i = number.node.id
        return self.slots[i].path if number.node.program is self and i < len(self.slots) else None

    def check_constants(self) -> None:
        if self.mixed:
            raise NotCompiled("a number and a size are computed together")
        if self.constants:
            raise Constant("the program takes a number's value", [self.slots[i] for i in sorted(self.constants)])

    # -- at each call

    def run(self, given: Sequence[Any]) -> list[float] | None:
        """All numbers for these given ones; None where the trace does not hold for them."""
        if not all([type(value) is float for value in given]):
            return None
        values = list(given)
        try:
            for function, operands in self.made:
                result = function(*[values[each] if type(each) is Id else each for each in operands])
                if type(result) is not float:
                    return None
                values.append(result)
            for function, operands, outcome in self.guards:
                if function(*[values[each] if type(each) is Id else each for each in operands]) is not outcome:
                    return None
        except (ArithmeticError, ValueError):
            return None
        return values

    def place(self, number: int) -> int:
        """Where the graph's input has this number."""
        if number not in self.inputs:
            if len(self.inputs) == ROOM:
                raise NotCompiled(f"more than {ROOM} numbers")
            self.inputs.append(number)
        return self.inputs.index(number)

    def input(self) -> torch.Tensor | None:
        """The graph's input for the numbers that are there now; None where the trace does not hold for them."""
        if (values := self.run([slot.get() for slot in self.slots])) is None:
            return None
        room = [0.0] * (ROOM - len(self.inputs))
        return torch.tensor([values[i] for i in self.inputs] + room, dtype=torch.float64, device="cpu")


def _token(operand: Any) -> Any:
    if type(operand) is Id:
        return Id, int(operand)
    return type(operand), struct.pack("d", operand) if isinstance(operand, float) else operand


class Numbered:
    """The entry of a trace with numbers."""

    def __init__(self, entry: Any, program: Program):
        self.entry, self.program = entry, program

    def now(self) -> Ready | None:
        """What runs with the numbers that are there now; None where the trace does not hold for them."""
        vector = self.program.input()
        return None if vector is None else Ready(self.entry, vector)


class Ready:
    def __init__(self, entry: Any, vector: torch.Tensor):
        self.entry, self._vector = entry, vector

    def __call__(self, inputs: list[torch.Tensor], args: tuple, kwargs: dict) -> Any:
        return self.entry([*inputs, self._vector], args, kwargs)


__all__ = ["Numbered", "Program", "Ready"]
