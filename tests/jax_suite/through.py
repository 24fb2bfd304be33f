"""`jax.jit` of a test, put through `trainc.jit`; what JAX calls within itself stays JAX's.

JAX's functions are jitted when they are imported, and its operations by a name that is not touched: so an operation that a test
calls outside of its own jit is XLA's, and what the test compares ours with.
"""

from __future__ import annotations

import contextlib
import dataclasses
import types
from collections.abc import Iterator
from typing import Any

import jax
import jax._src.test_util as jtu
from jax._src import api

from trainc.base import records
from trainc.jax import calls, door


@dataclasses.dataclass
class Seen:
    """What became of the functions that a test jits. Not these themselves: a test may count what is alive."""

    of_each: list[list[records.Compilation]] = dataclasses.field(default_factory=list)
    looked_inside: bool = False

    @property
    def records(self) -> list[records.Compilation]:
        return [record for each in self.of_each for record in each]


class _Watched(door.Jitted):
    """Notes whether a test asks for a module or a jaxpr: these show our plan, or another function around it."""

    def __init__(self, seen: Seen, *args: Any):
        super().__init__(*args)
        self._seen_by = seen
        seen.of_each.append(records.of(self))

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        self._seen_by.looked_inside = True
        return super().lower(*args, **kwargs)

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        self._seen_by.looked_inside = True
        return super().trace(*args, **kwargs)


class Through:
    """While it is on, every function that is jitted is one of ours."""

    def __init__(self) -> None:
        self._seen: Seen | None = None
        self._jit = jax.jit
        for ours in (door, calls):
            ours.jax = _Instead(jax, jit=jax.jit)
        jax.jit = self._either
        jtu.api = _Instead(api, jit=self._either)  # for _CompileAndCheck

    def _either(self, *args: Any, **kwargs: Any) -> Any:
        if self._seen is None:
            return self._jit(*args, **kwargs)
        if not args:
            return lambda function: self._either(function, **kwargs)
        return _Watched(self._seen, args[0], kwargs)

    @contextlib.contextmanager
    def on(self) -> Iterator[Seen]:
        self._seen = seen = Seen()
        try:
            yield seen
        finally:
            self._seen = None


class _Instead(types.ModuleType):
    """A module with some of its names replaced."""

    def __init__(self, module: types.ModuleType, **names: Any):
        super().__init__(module.__name__)
        self._module = module
        self.__dict__.update(names)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)
