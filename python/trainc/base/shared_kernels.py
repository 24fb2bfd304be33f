"""Kernels that the plans of one graph for different sizes have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainc.base.step_graph import GraphText


class SharedKernels:
    """They are given the numbers in which the sizes differ. `samples()` gives the graph for a few other sizes, which show what
    these numbers are."""

    def __init__(self, samples: Callable[[], list[GraphText]]):
        self._samples = samples
        self._made: list[Any] | None = None
        self._learned: set[Any] = set()
        self._shared: Any = None

    def learned(self, part: Any, make: Callable[[GraphText], Any], learn: Callable[[Any, Any], Any]) -> Any:
        """The compiler's object for them, once it knows what of `part` of a plan depends on sizes: `make` a sample, then `learn`
        of it."""
        from trainc import _core

        if self._shared is None:
            self._shared = _core.SharedKernels()
        if part not in self._learned:
            self._learned.add(part)
            if self._made is None:
                self._made = [make(graph) for graph in self._samples()]
            for made in self._made:
                learn(made, self._shared)
        return self._shared


__all__ = ["SharedKernels"]
