"""The rule for "trains to the same result" (docs/numerics.md): at each step the loss may differ from eager's by at most four
times what eager has differed from itself by then when its weights are disturbed in the last bit, or by 2e-6 where that is more.
(By then: two curves that have parted may cross at a single step.)"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # whoever compares processes needs no PyTorch of its own
    from torch import nn

FLOOR = 2e-6
SHARE = 4.0
DISTURBANCE = 1e-7
SEEDS = (1, 2, 3)


def disturb(model: nn.Module, seed: int) -> None:
    """Multiplies every weight by 1 + 1e-7 N(0, 1), without drawing from the global generator."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + DISTURBANCE * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))


def difference(loss: float, eager: float) -> float:
    """Relative to eager's; 0 for the same number, NaN and infinities too."""
    if loss == eager or (math.isnan(loss) and math.isnan(eager)):
        return 0.0
    return abs(loss - eager) / abs(eager) if eager else math.inf


def relative(losses: list[float], eager: list[float]) -> list[float]:
    return [difference(a, b) for a, b in zip(losses, eager, strict=True)]


def bounds(eager: list[float], disturbed: list[list[float]]) -> list[float]:
    """The largest relative difference allowed at each step; `disturbed`: eager's losses, one run a seed."""
    spreads = [relative(run, eager) for run in disturbed]
    by_then = itertools.accumulate(map(max, zip(*spreads, strict=True)), max)
    return [max(FLOOR, SHARE * spread) for spread in by_then]


def violations(losses: list[float], eager: list[float], disturbed: list[list[float]]) -> list[str]:
    """One line a step that breaks the rule."""
    rows = zip(losses, eager, relative(losses, eager), bounds(eager, disturbed), strict=True)
    return [
        f"step {i + 1}: loss {a!r}, eager {b!r}: differs by {d:.2e}, allowed {bound:.2e}"
        for i, (a, b, d, bound) in enumerate(rows)
        if not d <= bound
    ]


__all__ = ["DISTURBANCE", "FLOOR", "SEEDS", "SHARE", "bounds", "difference", "disturb", "relative", "violations"]
