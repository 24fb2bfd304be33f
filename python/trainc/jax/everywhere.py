"""Every large `jax.jit` of a program is trainc's."""

from __future__ import annotations

from typing import Any

import jax

from trainc.jax import door

LEAST = 60  # operations of a function that is compiled: a small one is XLA's at once, and gains nothing


def install(least: int) -> None:
    """`trainc.jax.install`."""

    def jit(fun: Any = None, /, **arguments: Any) -> Any:
        if fun is None:
            return lambda fun: jit(fun, **arguments)
        return door.Jitted(fun, arguments, "fast", least)

    jit.__doc__, jit.__module__, jit.__qualname__ = door.jax_jit.__doc__, door.jax_jit.__module__, door.jax_jit.__qualname__
    jax.jit = jit


def uninstall() -> None:
    jax.jit = door.jax_jit


__all__ = ["LEAST", "install", "uninstall"]
