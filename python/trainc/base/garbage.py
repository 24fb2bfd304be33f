"""Python's garbage collector rests while a program is traced and compiled: both make so many objects that it would look at all of
a framework's own, which are there to stay, again and again."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator

# A full collection looks at all of a program's objects, half a million with PyTorch: 0.3 s. A small model's trace takes 0.06 s
# and leaves 2,000 objects, GPT-2's 50,000: one in ten of the large ones brings a full collection.
MOST_LEFT = 500_000
# What is compiled and its model lie in a cycle of references: a model that the program drops goes by a full collection alone.
MOST_GROWN = 256 << 20  # bytes


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """No collection begins by itself in here; afterwards, they do as before."""
    if not gc.isenabled():
        yield
        return
    _old.collect_what_grew()
    gc.disable()
    try:
        yield
    finally:
        _old.take()
        gc.enable()


class _Old:
    """What traces left among Python's oldest objects since a full collection."""

    def __init__(self) -> None:
        self._left = 0
        self._collections = self._resident = -1

    def collect_what_grew(self) -> None:
        """A full collection where much was left or the process has grown: what a program compiled and dropped is part of it."""
        collections = _full_collections()
        if collections == self._collections:
            if self._left < MOST_LEFT and _resident() < self._resident + MOST_GROWN:
                return
            gc.collect()
        self._left, self._collections, self._resident = 0, _full_collections(), _resident()

    def take(self) -> None:
        """What was made is collected as young objects are, and what is left counts as old. Otherwise so many objects would grow
        old a few collections later, and a full collection would follow: in the second step."""
        gc.collect(0)
        if gc.get_freeze_count() == 0:  # else somebody's objects are frozen, and would not be any more
            self._left += len(gc.get_objects(generation=1))
            gc.freeze()
            gc.unfreeze()


def _full_collections() -> int:
    return gc.get_stats()[2]["collections"]


def _resident() -> int:
    """The process's memory in bytes; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
    except OSError:
        return 0


_old = _Old()

__all__ = ["uncollected"]
