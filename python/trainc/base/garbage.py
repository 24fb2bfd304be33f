"""Python's garbage collector rests while a program is traced and compiled: both make so many objects that it would look at all of
a framework's own, which are there to stay, again and again."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """No collection begins by itself in here; afterwards, they do as before."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            _settle()
            gc.enable()


def _settle() -> None:
    """What was made is collected as young objects are, and what is left counts as old. Otherwise so many objects would grow old a
    few collections later, and one that looks at everything (0.3 s of a program with PyTorch) would follow: in the second step."""
    gc.collect(0)
    if gc.get_freeze_count() == 0:  # else somebody's objects are frozen, and would not be any more
        gc.freeze()
        gc.unfreeze()


__all__ = ["uncollected"]
