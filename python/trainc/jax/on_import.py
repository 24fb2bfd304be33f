"""A program that nobody wants to touch: when it imports JAX, `jax.jit` becomes trainc's (everywhere.py).

`trainc_jax.pth`, which lies beside the package, asks for it in each process that has TRAINC_JAX=1. Nothing is imported before the
program does it.
"""

from __future__ import annotations

import warnings
from typing import Any

import trainc.jax
from trainc.base.on_import import when_imported


def watch() -> None:
    when_imported("jax", _install)


def _install(_: Any) -> None:
    try:
        trainc.jax.install()
    except Exception as error:  # the program's import must not fail for it
        from trainc.base.messages import TraincWarning

        warnings.warn(f"trainc: jax.jit stays JAX's: {error}", TraincWarning, stacklevel=2)


__all__ = ["watch"]
