"""The runner that compiles (trainc._core)."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch

from trainc.base import plans
from trainc.base.memory import Limit
from trainc.base.options import CompileOptions
from trainc.base.plans import JointPlans
from trainc.base.shared_kernels import SharedKernels
from trainc.base.step_graph import StepGraph
from trainc.torch.device import HOST, Host
from trainc.torch.run import tuning
from trainc.torch.run.executable import CoreExecutable


class TorchPlans:
    """What PyTorch adds to plans (base/plans.py)."""

    def __init__(self, device: Host):
        self.device = device

    def executable(self, plan: Any, from_cache: bool, types: Sequence[str | None]) -> CoreExecutable:
        return CoreExecutable(plan, from_cache, self.device, types)

    def tuner(self, options: CompileOptions) -> tuning.Tuner | None:
        return tuning.Tuner.of(options)


class Core:
    """One for each first call of a signature."""

    name = "core"

    def __init__(self, device: Host = HOST, tune: str = "fast"):
        self.device, self._tune = device, tune
        self._latest: weakref.ref[JointPlans] | None = None

    def inference(self, step: StepGraph, shared: SharedKernels | None = None) -> CoreExecutable:
        return self._compiled(step, shared).forward

    def joint(
        self, step: StepGraph, shared: SharedKernels | None = None, limit: Limit | None = None, defer_small: bool = False,
        kept: list[int] | None = None,
    ) -> JointPlans:  # fmt: skip
        latest = self._latest and self._latest()
        # A model that sets defaults in its first call is traced twice in it: mostly the same graph (CompiledCall._settled).
        if latest is None or not latest.serves(step, limit, defer_small):
            latest = self._compiled(step, shared, limit, defer_small)
            self._latest = weakref.ref(latest)
        return latest

    def whole(self, step: StepGraph, shared: SharedKernels | None = None, limit: Limit | None = None) -> CoreStep:
        return CoreStep(self._compiled(step, shared, limit), step.updates)

    def _compiled(
        self, step: StepGraph, shared: SharedKernels | None, limit: Limit | None = None, defer_small: bool = False
    ) -> Any:
        options = CompileOptions.of(self.device, self._tune, limit is not None)
        return plans.compile_step(step, options, TorchPlans(self.device), shared, limit, defer_small)


class CoreStep:
    """A whole step as the compiler's plan."""

    def __init__(self, plan: plans.StepPlan, updates: Any):
        self._plan, self._updates, self.footprint, self.report = plan.whole, updates, plan.footprint, plan.whole.report
        self.plan, self.graph = plan.whole.plan, plan.whole.graph

    def __call__(
        self, inputs: Sequence[torch.Tensor], states: list[list[torch.Tensor]], scalars: list[list[float]]
    ) -> list[torch.Tensor | None]:
        return self._plan([*inputs, *self._updates.inputs(states, scalars)])

    def share_memory(self, other: Any) -> None:
        if isinstance(other, CoreStep):
            self._plan.share_memory(other._plan)


__all__ = ["Core"]
