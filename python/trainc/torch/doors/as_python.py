"""torch.compile's tracer as trainc calls it: what it would do otherwise than the program's Python is left to Python."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

from trainc.torch import compat


def as_python() -> contextlib.AbstractContextManager:
    """While active, a call of Dynamo's does what the program does (`compat.dynamo_as_python`), random numbers of Python's and
    NumPy's included: it breaks its graph where one is drawn, and Python draws it at each call."""
    _leave_generators_to_python()
    return compat.dynamo_as_python()


@functools.cache
def _leave_generators_to_python() -> None:
    """Dynamo draws from a copy of a `random.Random`, and moves the program's own on by other numbers. Replaced for good, for two
    threads may be in it; by one switch with NumPy's generators, so that who calls torch.compile himself has what he had."""
    supported = getattr(*compat.DYNAMO_COPIES_GENERATOR)

    def is_supported(val: Any) -> bool:
        return not compat.dynamo_draws_by_python() and supported(val)

    setattr(*compat.DYNAMO_COPIES_GENERATOR, staticmethod(is_supported))


__all__ = ["as_python"]
