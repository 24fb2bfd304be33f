"""Every private name of JAX's, with what it is for."""

from __future__ import annotations

from typing import Any

from jax._src import source_info_util
from jax._src.core import trace_state_clean


def is_tracing() -> bool:
    """Whether a function is being traced on this thread: what is called now becomes a part of it."""
    return not trace_state_clean()


def line_of(equation: Any) -> str:
    """The user's line of an equation of a jaxpr: "/path/train.py:41:8 (step)"."""
    return source_info_util.summarize(equation.source_info)


__all__ = ["is_tracing", "line_of"]
