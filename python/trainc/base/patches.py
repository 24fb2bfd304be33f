"""What trainc puts in the place of a function of PyTorch's or Python's for a while. No walk over what the program reads sees it:
`programs` gives what the program has there."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any


class Name:
    def __init__(self, name: str):
        self._name = name

    def __repr__(self) -> str:
        return self._name


MISSING = Name("missing")

# (id of a dictionary, key) -> what the program has there, while a trace puts something else in its place
REPLACED: dict[tuple[int, Any], Any] = {}


@contextlib.contextmanager
def replaced(
    table: dict, key: Any, value: Any, put: Callable[[Any], None] | None = None, remove: Callable[[], Any] | None = None
) -> Iterator[None]:
    """`table[key]` is `value` (by `put` and `remove` where `table` is not to be written), and no walk sees it. What the program
    itself puts there meanwhile stays."""
    before, place = table.get(key, MISSING), (id(table), key)
    outermost = place not in REPLACED
    if outermost:
        REPLACED[place] = before
    put = put or functools.partial(table.__setitem__, key)
    put(value)
    try:
        yield
    finally:
        if outermost:
            del REPLACED[place]
        if table.get(key, MISSING) is value:
            put(before) if before is not MISSING else (remove or functools.partial(table.pop, key))()


def programs(table: dict, key: Any, value: Any) -> Any:
    """`value`, found as `table[key]`, or what the program has there."""
    return REPLACED.get((id(table), key), value) if REPLACED else value


@contextlib.contextmanager
def patched(owner: Any, name: str, value: Any):
    put, remove = functools.partial(setattr, owner, name), functools.partial(delattr, owner, name)
    with replaced(vars(owner), name, value, put, remove):
        yield


__all__ = ["MISSING", "REPLACED", "Name", "patched", "programs", "replaced"]
