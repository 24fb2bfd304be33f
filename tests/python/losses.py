"""The rule for "trains to the same result" (docs/numerics.md): at each step the loss may differ from eager's by at most four
times what eager differs from itself when its weights are disturbed in the last bit, or by 2e-6 where that is more."""

from __future__ import annotations

import torch
from torch import nn

FLOOR = 2e-6
SHARE = 4.0
DISTURBANCE = 1e-7
SEEDS = (1, 2, 3, 4, 5, 6)  # with three, what a step of a small ResNet is seen to spread is 15 times too little, by chance


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
    return [max(FLOOR, SHARE * max(at_step)) for at_step in zip(*spreads, strict=True)]


def bf16_bounds(eager: list[float], disturbed: list[list[float]], runs: list[list[float]]) -> list[float]:
    """Under bf16 autocast: the largest relative difference from eager in fp32 allowed at each step: the furthest that `runs`,
    eager's own under bf16, are from it anywhere (at a single step two curves may cross), and what fp32 is allowed beside that."""
    furthest = max(max(relative(run, eager)) for run in runs)
    return [furthest + bound for bound in bounds(eager, disturbed)]


def violations(losses: list[float], eager: list[float], disturbed: list[list[float]]) -> list[str]:
    """One line a step that breaks the rule."""
    rows = zip(losses, eager, relative(losses, eager), bounds(eager, disturbed), strict=True)
    return [
        f"step {i + 1}: loss {a!r}, eager {b!r}: differs by {d:.2e}, allowed {bound:.2e}"
        for i, (a, b, d, bound) in enumerate(rows)
        if not d <= bound
    ]
