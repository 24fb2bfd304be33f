"""tune="max" in PyTorch (base/tuning.py): does PyTorch's own operator (framework_calls.py) take a contraction's place? It adds up
in another order: docs/contraction.md says what is asked of it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from trainc.base import cache, tuning
from trainc.torch import compat
from trainc.torch.run.executable import CoreExecutable

FRAMEWORK_GAIN = 0.95  # a call must gain more: each is Python between two kernels, and memory outside of the plan's
LEAST_RUNS, MOST_RUNS, ENOUGH = 5, 50, 0.1  # of each of the two; seconds, of all runs together


class Tuner(tuning.Tuner):
    """What the compiler asks, for plans by these options."""

    def framework(self, text: str, call: str, plans: dict[str, Callable[[], Any]]) -> str:
        """Whether PyTorch's operator takes a contraction's place: a line for the plan's notes, or "" where it does not. By the
        stored answer, or a race of the plans "ours" (then "tuned") and "framework"; "alone" is the contraction without what
        stands beside it."""
        if not self.options.framework_calls:
            return ""
        found, _ = cache.through(
            cache.key("framework", self.options.of_measurements(), text),
            lambda about, _: Verdict.of(about),
            lambda: verdict(plans),
            lambda found: (found._asdict(), b""),
        )
        return found.note(call) if found.chosen(self.options.framework_error) else ""


class Verdict(NamedTuple):
    ours: float  # seconds
    framework: float
    reproducible: bool | None = None  # None: not asked, for it was not faster
    our_error: float | None = None  # of the contraction alone, against float64: root mean square, of the result's own
    framework_error: float | None = None

    @classmethod
    def of(cls, about: dict) -> Verdict:
        """Of what `_asdict` gave. Raises ValueError or KeyError where it did not."""
        found = cls(**{name: about[name] for name in cls._fields})
        numbers = [found.ours, found.framework] + ([] if found.reproducible is None else [found.our_error, found.framework_error])
        if not all(type(x) is float and x >= 0 for x in numbers) or type(found.reproducible) not in (bool, type(None)):
            raise ValueError("it is no verdict of a race")
        return found

    @property
    def faster(self) -> bool:
        return self.framework < FRAMEWORK_GAIN * self.ours

    def chosen(self, most_error: float) -> bool:
        """`most_error`: of PyTorch's operator, over that of our kernel."""
        return self.faster and bool(self.reproducible) and self.framework_error <= most_error * self.our_error

    def note(self, call: str) -> str:
        gain, error = self.framework / self.ours, self.framework_error / max(self.our_error, 1e-30)
        return f"{call}: PyTorch's operator, {gain:.2f} of the time of trainc's kernel, {error:.2f} of its error against float64"


def verdict(plans: dict[str, Callable[[], Any]]) -> Verdict:
    """Both run in turn on the same kind of numbers; of the faster one, where it is PyTorch's, more is asked."""
    with compat.disable_current_modes(), compat.users_onednn():  # as a step finds them: the compiler may be asked in a trace
        ours, framework = CoreExecutable(plans["ours"]()), CoreExecutable(plans["framework"]())
        found = Verdict(*seconds_of(ours, framework))
        if found.faster:  # than our kernel as it comes: only then its own variants are measured
            found = Verdict(*seconds_of(CoreExecutable(plans["tuned"]()), framework))
        if not found.faster:
            return found
        (call,) = framework._externs.values()
        return found._replace(**quality(CoreExecutable(plans["alone"]()), call))


def seconds_of(ours: Any, framework: Any) -> tuple[float, float]:
    """The least of several runs of each, in turn."""
    runs = [(plan, numbers(plan, 0)) for plan in (ours, framework)]
    best, spent, rounds = [math.inf, math.inf], 0.0, 0
    for plan, inputs in runs:
        plan(inputs)  # fills the caches, and what an operator keeps from call to call
    while rounds < MOST_RUNS and (rounds < LEAST_RUNS or spent < ENOUGH):
        for which, (plan, inputs) in enumerate(runs):
            start = time.perf_counter()
            plan(inputs)
            seconds = time.perf_counter() - start
            best[which], spent = min(best[which], seconds), spent + seconds
        rounds += 1
    return best[0], best[1]


def quality(alone: Any, call: Any) -> dict[str, Any]:
    """`reproducible` and the two errors of a Verdict, on random numbers."""
    import torch

    inputs = numbers(alone, 1)
    operands = inputs * (2 // len(inputs))  # x times its own transpose has one
    theirs = call.compute(operands)
    truth = call.compute([x.double() for x in operands])
    scale = truth.square().mean().sqrt().clamp_min(1e-300)

    def error(result: Any) -> float:
        return ((result.double() - truth).square().mean().sqrt() / scale).item()

    same = all(torch.equal(theirs, call.compute(operands)) for _ in range(2))
    return {"reproducible": same, "our_error": error(alone(inputs)[0]), "framework_error": error(theirs)}


def numbers(plan: Any, seed: int) -> list[Any]:
    """Inputs for a plan: normal numbers where they are floats, zeros elsewhere (positions are valid so). PyTorch's own generator
    is left as it is."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    made: list[Any] = [None] * len(plan.plan.input_info)
    for i, (dtype, shape, stride) in plan._read.items():
        made[i] = torch.empty_strided(shape, stride, dtype=dtype)
        if dtype.is_floating_point:
            made[i].copy_(torch.randn(shape, generator=generator))
        else:
            made[i].zero_()
    return made
