"""What `trainc run` tells at the end, of any framework."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import trainc
from trainc.base import messages
from trainc.jax import on_import

NOTHING_TRAINED = "no optimizer was made, and no backward called, in this process (those that it starts run in PyTorch)"


def say(text: str) -> None:
    messages.tell(f"trainc run: {text}")


@contextlib.contextmanager
def telling() -> Iterator[None]:
    """Around what is told of a program that has ended as it has: a failure of ours is not to be its."""
    try:
        yield
    except Exception as failure:
        messages.require_fallback(failure)
        say(f"what was compiled cannot be told; {type(failure).__name__}: {failure}")


def tell_of_jax(explain: bool) -> bool:
    """Whether functions of JAX's were compiled, of which it tells where asked for."""
    jitted = on_import.compiled()
    for function in jitted if explain else ():
        messages.tell(str(trainc.explain(function)))
    return bool(jitted)


__all__ = ["NOTHING_TRAINED", "say", "tell_of_jax", "telling"]
