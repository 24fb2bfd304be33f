"""Every large `jax.jit` of a program is trainc's."""

from __future__ import annotations

import weakref
from typing import Any

import jax

from trainc.jax import door

LEAST = 60  # operations of a function that is compiled: a small one is XLA's at once, and gains nothing

made: weakref.WeakSet[door.Jitted] = weakref.WeakSet()  # what `jax.jit` has given since `install`


def install(least: int) -> None:
    """`trainc.jax.install`."""

    def jit(fun: Any = None, /, **arguments: Any) -> Any:
        if fun is None:
            return lambda fun: jit(fun, **arguments)
        jitted = door.Jitted(fun, arguments, "fast", least)
        made.add(jitted)
        return jitted

    jit.__doc__, jit.__module__, jit.__qualname__ = door.jax_jit.__doc__, door.jax_jit.__module__, door.jax_jit.__qualname__
    jax.jit = jit


def uninstall() -> None:
    jax.jit = door.jax_jit


__all__ = ["LEAST", "install", "uninstall"]
