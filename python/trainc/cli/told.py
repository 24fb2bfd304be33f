"""What `trainc run` is told, and what it tells at the end, that needs no PyTorch."""

from __future__ import annotations

import contextlib
from typing import Any

import trainc
from trainc.base import messages
from trainc.jax import on_import

NOTHING_TRAINED = "no optimizer was made, and no backward called, in this process (those that it starts run in PyTorch)"


def say(text: str) -> None:
    messages.tell(f"trainc run: {text}")


def memory_of(text: str | None) -> Any:
    """`--memory`, as trainc.compile's memory=: "4GB", or a share as a number."""
    with contextlib.suppress(ValueError, TypeError):
        return share if (share := float(text)) <= 1 else text  # type: ignore[arg-type]
    return text


def tell_of_jax(explain: bool) -> bool:
    """Whether functions of JAX's were compiled, of which it tells where asked for."""
    jitted = on_import.compiled()
    for function in jitted if explain else ():
        messages.tell(str(trainc.explain(function)))
    return bool(jitted)


__all__ = ["NOTHING_TRAINED", "memory_of", "say", "tell_of_jax"]
