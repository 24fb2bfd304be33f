"""The CPU, as JAX has it."""

from __future__ import annotations

from typing import Any

import jax


class Host:
    framework = f"jax {jax.__version__}"
    calls_operators = False  # a call of JAX from within XLA's handler would not come back

    def target(self) -> dict[str, Any]:
        return {"device": "cpu"}

    def facts(self) -> list[Any]:
        return []

    def facts_of_measurements(self) -> list[Any]:
        return []

    def threads(self) -> int:
        from trainc import _core

        return _core.thread_count()


__all__ = ["Host"]
