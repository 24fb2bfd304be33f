"""Plans that XLA calls by their name, whichever framework's XLA that is."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from trainc.base import timing, tuning
from trainc.base.options import CompileOptions

TARGET = "trainc_plan"  # the name of the handler (src/runtime/xla/handler.h)


class Host:
    """The CPU, as a framework of XLA's has it. `framework`: its name and version."""

    calls_operators = False  # a call of the framework from within XLA's handler would not come back

    def __init__(self, framework: str):
        self.framework = framework

    def target(self) -> dict[str, Any]:
        return {"device": "cpu"}

    def facts(self) -> list[Any]:
        return []

    def facts_of_measurements(self) -> list[Any]:
        return []

    def threads(self) -> int:
        from trainc import _core

        return _core.thread_count()


class XlaPlan:
    """A plan that XLA calls by its name: a hash of what it does, so that no stored executable of XLA's calls another."""

    def __init__(self, plan: Any, from_cache: bool, flushes_denormals: bool):
        from trainc import _core

        self.plan, self.from_cache = plan, from_cache
        self.graph: Any = None  # base/plans.py
        timing.add(self)
        self.name = hashlib.sha256(plan.save() + bytes([flushes_denormals])).hexdigest()
        _core.publish(self.name, plan, flushes_denormals)
        self.needed: list[int] = _core.needed_inputs(plan)  # inputs; a call may be given these alone
        kept = [(info[3], i) for i, info in enumerate(plan.output_info) if info[3] >= 0]  # inputs that are results as they are
        self._in_place = {*plan.given_away, *kept}

    def aliases(self, given_away: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
        """Inputs with the results that lie where they did. `given_away`: as the plan was asked for them."""
        return tuple(pair for pair in given_away if pair in self._in_place)

    def report(self) -> dict:
        return {**json.loads(self.plan.report()), "from_cache": self.from_cache}


class XlaPlans:
    """What a framework of XLA's adds to plans (base/plans.py)."""

    def __init__(self, device: Host, options: CompileOptions):
        self.device, self._options = device, options

    def executable(self, plan: Any, from_cache: bool, _types: Sequence[str | None]) -> XlaPlan:
        return XlaPlan(plan, from_cache, self._options.flushes_denormals)

    def tuner(self, options: CompileOptions) -> tuning.Tuner | None:
        return tuning.Tuner.of(options)


__all__ = ["TARGET", "Host", "XlaPlan", "XlaPlans"]
