"""Who moves PyTorch's random numbers on while a program is traced.

The generator is one for all threads. A trace draws nothing, for its tensors hold no numbers; it may set the generator. So where
there are other threads, and no trace has set it, what moved it on was one of these, and its numbers are not put back.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from trainc.base.patches import patched

_sets = 0  # how often traces have set the generator


class Draws:
    """From when it is made on."""

    def __init__(self):
        self._alone, self._sets = _is_alone(), _sets

    def may_be_others(self) -> bool:
        return _sets == self._sets and not (self._alone and _is_alone())


def _is_alone() -> bool:
    return len(sys._current_frames()) == 1


class _Generator:
    """What torch.random's functions work on."""

    def __init__(self, is_mine: Callable[[], bool], generator: torch.Generator):
        self._is_mine, self._generator = is_mine, generator

    def __getattr__(self, name: str) -> Any:
        global _sets
        if name in ("manual_seed", "seed", "set_state") and self._is_mine():
            _sets += 1
        return getattr(self._generator, name)


def watched(is_mine: Callable[[], bool]) -> Any:
    """A context in which it is counted how often threads set the generator of which `is_mine()` holds."""
    return patched(torch.random, "default_generator", _Generator(is_mine, torch.random.default_generator))


__all__ = ["Draws", "watched"]
