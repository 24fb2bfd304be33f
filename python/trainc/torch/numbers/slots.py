"""Places of the program's state, and arguments, that hold a number that changes."""

from __future__ import annotations

import threading
import types
from collections.abc import Sequence
from typing import Any

from trainc.base.errors import NotCompiled

TRIES = 4  # traces of a number that could not be compared with one of another value


class Constant(NotCompiled):
    """Some numbers must be constants after all. `again`: only for this call."""

    def __init__(self, message: str, slots: Sequence[Slot], again: bool = False):
        super().__init__(message)
        self.slots, self.again = list(slots), again


class Group:
    """The settings of an optimizer's group, wherever they are: `load_state_dict` puts another dictionary there."""

    __slots__ = ("_index", "_optimizer")

    def __init__(self, optimizer: Any, index: int):
        self._optimizer, self._index = optimizer, index

    def now(self) -> Any:
        groups = self._optimizer.__dict__.get("param_groups")
        return groups[self._index] if isinstance(groups, list) and self._index < len(groups) else None


class Slot:
    """A place of the program's state that holds a float: (dictionary or Group, key), (list, index), (object, slot) or a cell;
    or an argument, by its path within the arguments' structure."""

    __slots__ = ("_holder", "given", "key", "path", "state", "tries")

    def __init__(self, container: Any, key: Any, path: tuple | None = None, given: Any = None):
        self._holder, self.key, self.path, self.given = container, key, path, given
        # "new"; "seen" with a second value; "moving": an input from now on; "fixed": a constant for good
        self.state, self.tries = "new", 0

    @property
    def container(self) -> Any:
        return self._holder.now() if type(self._holder) is Group else self._holder

    def holds(self, container: Any, key: Any) -> bool:
        container = container.now() if type(container) is Group else container
        return self.path is None and container is not None and self.container is container and self.key == key

    def get(self) -> Any:
        thing, key = self.container, self.key
        try:
            if self.path is not None:
                return self.given.values.get(self.path)
            if isinstance(thing, dict):
                return dict.get(thing, key)
            if isinstance(thing, list):
                return list.__getitem__(thing, key)
            return thing.cell_contents if isinstance(thing, types.CellType) else getattr(thing, key)
        except (AttributeError, IndexError, ValueError):
            return None

    def put(self, value: Any) -> None:
        thing = self.container
        if isinstance(thing, dict):
            dict.__setitem__(thing, self.key, value)
        elif isinstance(thing, list):
            list.__setitem__(thing, self.key, value)
        elif isinstance(thing, types.CellType):
            thing.cell_contents = value
        else:
            object.__setattr__(thing, self.key, value)


class _ArgumentValues(threading.local):
    """The numbers among the arguments of the call that is going on in this thread, by their paths."""

    def __init__(self) -> None:
        self.values: dict[tuple, float] = {}


class Registry:
    """The numbers of one compiled call that were seen to change."""

    def __init__(self) -> None:
        self.slots: list[Slot] = []
        self._given = _ArgumentValues()
        self.moving: list[Slot] = []
        self._arguments: list[Slot] = []

    def of_place(self, container: Any, key: Any) -> Slot:
        found = next((slot for slot in self.slots if slot.holds(container, key)), None)
        return found or self._added(Slot(container, key))

    def of_argument(self, path: tuple) -> Slot:
        found = next((slot for slot in self.slots if slot.path == path), None)
        return found or self._added(Slot(None, None, path, self._given))

    def _added(self, slot: Slot) -> Slot:
        self.slots.append(slot)
        self.set([], "")
        return slot

    def set(self, slots: Sequence[Slot], state: str) -> None:
        for slot in slots:
            slot.state = state if slot.state != "fixed" else "fixed"
        self.moving = [slot for slot in self.slots if slot.state == "moving"]
        self._arguments = [slot for slot in self.slots if slot.path is not None]

    def refuse(self, reason: Constant) -> None:
        """No number moves now: the call that goes on is traced with constants. Those that are not fixed may move at a later."""
        for slot in reason.slots:
            slot.tries += 1
            slot.state = "seen" if reason.again and slot.tries < TRIES else "fixed"
        self.set(self.moving, "seen")

    def without_numbers(self, structure: tuple) -> tuple:
        """`structure` of the arguments with moving numbers in the place of their values, which are kept for this thread."""
        if not self._arguments:
            return structure
        values: dict[tuple, float] = {}
        for slot in self._arguments:
            replaced = _replaced(structure, slot.path, 0, slot.path, values)
            structure = replaced if slot.state == "moving" else structure
        self._given.values = values
        return structure

    def active(self) -> list[Slot]:
        return [slot for slot in self.moving if type(slot.get()) is float]


def _replaced(structure: tuple, rest: tuple, depth: int, path: tuple, values: dict[tuple, float]) -> tuple:
    if depth == len(rest):
        if structure[0] != "const" or type(structure[2]) is not float:
            return structure
        values[path] = structure[2]
        return ("number", float, path)
    if structure[0] != "node" or rest[depth] >= len(structure[3]):
        return structure
    i, children = rest[depth], structure[3]
    child = _replaced(children[i], rest, depth + 1, path, values)
    return (*structure[:3], (*children[:i], child, *children[i + 1 :]), *structure[4:])


def differing(old: Any, new: Any, path: tuple = ()) -> list[tuple] | None:
    """The paths at which two structures of arguments have other floats; None where they differ in anything else."""
    if old == new:
        return []
    if old[0] != "node" and new[0] != "node":
        return [path] if all(s[0] == "number" or s[0] == "const" and type(s[2]) is float for s in (old, new)) else None
    if old[0] != "node" or new[0] != "node" or len(old) != len(new) or len(old[3]) != len(new[3]):
        return None
    if old[:3] != new[:3] or old[4:] != new[4:]:
        return None
    found: list[tuple] = []
    for i, (a, b) in enumerate(zip(old[3], new[3], strict=True)):
        inner = differing(a, b, (*path, i))
        if inner is None:
            return None
        found += inner
    return found


__all__ = ["Constant", "Group", "Registry", "Slot", "differing"]
