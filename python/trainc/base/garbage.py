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
            gc.enable()


__all__ = ["uncollected"]
