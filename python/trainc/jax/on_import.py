"""A program that nobody wants to touch: when it imports JAX, `jax.jit` becomes trainc's (everywhere.py).

`trainc_jax.pth`, which lies beside the package, asks for it in each process that has TRAINC_JAX=1. Nothing is imported before the
program does it.
"""

from __future__ import annotations

import warnings
from typing import Any

import trainc.jax
from trainc.base import records
from trainc.base.on_import import when_imported

_installed = False


def watch() -> None:
    when_imported("jax", _install)


def compiled() -> list[Any]:
    """What the program's `jax.jit` made of its functions, where a plan was asked for and the program still holds it."""
    if not _installed:
        return []
    from trainc.jax import everywhere

    return [jitted for jitted in everywhere.made if records.of(jitted)]


def _install(_: Any) -> None:
    global _installed
    try:
        trainc.jax.install()
        _installed = True
    except Exception as error:  # the program's import must not fail for it
        from trainc.base.messages import TraincWarning

        warnings.warn(f"trainc: jax.jit stays JAX's: {error}", TraincWarning, stacklevel=2)


__all__ = ["compiled", "watch"]
