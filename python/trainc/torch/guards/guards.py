"""Whether everything that a trace may have read is as it was, asked at every call."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import torch

from trainc.base.errors import NotCompiled
from trainc.torch.guards.kinds import is_number
from trainc.torch.guards.places import IGNORED, contents_guard
from trainc.torch.guards.reads import Reads
from trainc.torch.numbers import Slot


class Guards:
    """Whether everything that a trace may have read is as it was. Cheap where the very objects are there; where others are, they
    are walked and compared by value."""

    def __init__(
        self, reads: Reads, type_guard: Callable[[list[torch.Tensor]], Callable[[list[torch.Tensor]], bool]],
        moving: Sequence[Slot] = (),
    ):  # fmt: skip
        """`moving`: numbers that may be any."""
        self._moving = [slot for slot in moving if slot.path is None]
        self._walk = reads.again()
        self.outline = self._outline(self._walk)
        # The tensors and their types are those of the trace for good: another tensor, or another type, is another trace.
        self.tensors = self._walk.tensors
        self._type_guard = type_guard(self.tensors) if self.tensors else None
        self._bind()

    def _bind(self) -> None:
        watched = [p for p in self._walk.places if p.guards]
        self._places = [p.thing for p in watched]
        self._expected = [each for p in watched for each in (*p.held, p.thing)]
        objects, classes = zip(*self._walk.classes.values(), strict=True) if self._walk.classes else ((), ())
        self._same = contents_guard(self._places, self._expected, objects, classes)
        self._asked = [p for p in self._walk.places if p.asked]
        self._numbers = positions([(p.thing, p.held) for p in watched], self._moving)

    def _outline(self, walk: Reads) -> dict[str, Any]:
        if not self._moving:
            return walk.outline
        any_number = {
            path: ("number", float)
            for path, place in walk.numbers().items()
            if path in walk.outline and any(slot.holds(*place) for slot in self._moving)
        }
        return {**walk.outline, **any_number}

    def other_numbers(self) -> list[tuple[Any, Any]] | None:
        """The numbers that are others now, as containers and keys; None where anything else is."""
        try:
            walk = self._walk.again(kept=True)
        except NotCompiled:
            return None
        now, found = self._outline(walk), walk.numbers()
        other = [path for path in {**self.outline, **now} if self.outline.get(path) != now.get(path)]
        if not all(path in found and is_number(self.outline.get(path)) and is_number(now.get(path)) for path in other):
            return None
        return [found[path] for path in other] if list(map(id, walk.tensors)) == list(map(id, self.tensors)) else None

    def __call__(self) -> bool:
        expect(self._numbers, self._expected)
        if self._type_guard is not None and not self._type_guard(self.tensors):
            return False
        if self._same() and not any([place.changed() for place in self._asked]):
            return True
        try:
            walk = self._walk.again(kept=True)
        except NotCompiled:
            return False
        if self._outline(walk) != self.outline or list(map(id, walk.tensors)) != list(map(id, self.tensors)):
            return False
        self._walk = walk
        self._bind()
        return True

    def differences(self) -> list[str]:
        """What is other now, in the user's terms."""
        try:
            now = self._outline(self._walk.again(kept=True))
        except NotCompiled as reason:
            return [str(reason)]
        told = []
        for place in {**self.outline, **now}:
            path, old, new = place[0], self.outline.get(place), now.get(place)
            if old != new:
                both = old is not None and new is not None and isinstance(old[0], type) and issubclass(old[0], (int, float, str))
                told.append(f"`{path}` changed" + (f" from {_shown(old)} to {_shown(new)}" if both else ""))
        return told


class Untagged:
    """Whether the modules' tensors still lack attributes that the program asked them for. (An argument's are in its type.)
    `current()`: the modules' tensors, the same list where they are the same."""

    tensors: Sequence[torch.Tensor] = ()

    def __init__(self, current: Callable[[], list[torch.Tensor]], names: set[str]):
        self._current, self._names = current, names
        self._seen: list[torch.Tensor] = []
        self._tables: list[dict[str, Any]] = []  # their attributes: looking at a tensor's takes longer than at a dictionary

    def __call__(self) -> bool:
        if (now := self._current()) is not self._seen:
            self._seen, self._tables = now, [vars(tensor) for tensor in now]
        return not any(self._tables) or not self.differences()

    def differences(self) -> list[str]:
        found = {name for tensor in self._current() for name in self._names.intersection(vars(tensor))}
        return [f"a parameter or buffer has an attribute `{name}` now" for name in sorted(found)]

    def other_numbers(self) -> list[tuple[Any, Any]] | None:
        return [] if self() else None


class Elsewhere:
    """Whether the modules' tensors that the program also reaches in another way are still theirs. `found`: by index."""

    def __init__(self, current: Callable[[], list[torch.Tensor]], found: dict[int, torch.Tensor]):
        self._current, self._found = current, list(found.items())
        self.tensors = list(found.values())

    def __call__(self) -> bool:
        now = self._current()
        return all(i < len(now) and now[i] is tensor for i, tensor in self._found)

    def differences(self) -> list[str]:
        return [] if self() else ["a parameter or buffer was replaced, whose old one is reached in another way"]

    def other_numbers(self) -> list[tuple[Any, Any]] | None:
        return [] if self() else None


NO_NUMBER = object()  # what no place holds


def positions(places: list[tuple[Any, list[Any]]], slots: Sequence[Slot]) -> list[tuple[Slot, list[int]]]:
    """Where in the `contents` of places these numbers are; of each place what it holds is given."""
    found: list[tuple[Slot, list[int]]] = [(slot, []) for slot in slots]
    start = 0
    for place, inside in places if slots else ():
        for slot, where in found:
            if isinstance(place, tuple) and len(place) == 2 and slot.holds(*place) or slot.holds(place, None):
                where.append(start)
            elif isinstance(place, dict) and slot.container is place:
                keys = enumerate(inside[::2])
                where += [start + 2 * i + 1 for i, key in keys if key == slot.key and inside[2 * i + 1] is not IGNORED]
            elif isinstance(place, list) and slot.container is place and slot.key < len(inside):
                where.append(start + slot.key)
        start += len(inside) + 1
    return [(slot, where) for slot, where in found if where]


def expect(numbers: list[tuple[Slot, list[int]]], expected: list[Any]) -> None:
    """Of numbers that may be any, at their `positions`: what they are now."""
    for slot, places in numbers:
        number = slot.get()
        for i in places:
            expected[i] = number if type(number) is float else NO_NUMBER


def _shown(value: tuple) -> str:
    return repr(struct.unpack("d", value[1])[0]) if value[0] is float else repr(value[1])


__all__ = ["Elsewhere", "Guards", "Untagged", "expect", "positions"]
