"""Whether plans time their kernels (`trainc.profile`): those that there are, and those compiled meanwhile."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

_plans: weakref.WeakSet[Any] = weakref.WeakSet()  # whatever has a `profile` to set, as `.plan`
_depth = 0


def add(executable: Any) -> None:
    """A plan that was loaded."""
    _plans.add(executable)
    executable.plan.profile = _depth > 0


@contextlib.contextmanager
def timing() -> Iterator[None]:
    global _depth
    _depth += 1
    try:
        _set()
        yield
    finally:
        _depth -= 1
        _set()


def _set() -> None:
    for executable in list(_plans):
        executable.plan.profile = _depth > 0
