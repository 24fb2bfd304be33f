"""The rule for "trains to the same result" (docs/numerics.md): at each step the loss may differ from eager's by at most four
times what eager has differed from itself by then when its weights are disturbed in the last bit, or by 2e-6 where that is more.
(By then: two curves that have parted may cross at a single step.)"""

from __future__ import annotations

import itertools
import math

import torch
from torch import nn

FLOOR = 2e-6
SHARE = 4.0
DISTURBANCE = 1e-7
SEEDS = (1, 2, 3)
INITIAL = (0, 1, 2, 3)  # weights to start from, under bf16
MORE = (4, 5, 6, 11, 12, 13)  # where those four are beyond their limit, these decide with them, by the narrower limit of ten


def disturb(model: nn.Module, seed: int) -> None:
    """Multiplies every weight by 1 + 1e-7 N(0, 1), without drawing from the global generator."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + DISTURBANCE * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))


def relative(losses: list[float], eager: list[float]) -> list[float]:
    return [abs(a - b) / abs(b) for a, b in zip(losses, eager, strict=True)]


def bounds(eager: list[float], disturbed: list[list[float]]) -> list[float]:
    """The largest relative difference allowed at each step; `disturbed`: eager's losses, one run a seed."""
    spreads = [relative(run, eager) for run in disturbed]
    by_then = itertools.accumulate(map(max, zip(*spreads, strict=True)), max)
    return [max(FLOOR, SHARE * spread) for spread in by_then]


def root_mean_square(values: list[float]) -> float:
    return math.sqrt(sum(value * value for value in values) / len(values))


def distance(losses: list[float], eager: list[float]) -> float:
    """Of a whole curve from another."""
    return root_mean_square(relative(losses, eager))


def bf16_ratio(losses: list[float], eager: list[float], disturbed: list[list[float]], eager_bf16: list[float]) -> float:
    """Under bf16 autocast: the distance from eager in fp32, over that of eager's own run under bf16 and what fp32 is allowed
    beside it. Of one model, it is as much luck as accuracy: the rule is of the geometric mean over `INITIAL` ones."""
    allowed = distance(eager_bf16, eager) + root_mean_square(bounds(eager, disturbed))
    return distance(losses, eager) / allowed


def bf16_limit(models: int) -> float:
    """Of the geometric mean of `bf16_ratio` over so many initial models: two of them differ by a third, by luck."""
    return 1 + 0.5 / math.sqrt(models)


def geometric_mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def violations(losses: list[float], eager: list[float], disturbed: list[list[float]]) -> list[str]:
    """One line a step that breaks the rule."""
    rows = zip(losses, eager, relative(losses, eager), bounds(eager, disturbed), strict=True)
    return [
        f"step {i + 1}: loss {a!r}, eager {b!r}: differs by {d:.2e}, allowed {bound:.2e}"
        for i, (a, b, d, bound) in enumerate(rows)
        if not d <= bound
    ]
