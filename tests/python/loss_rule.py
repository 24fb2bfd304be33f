"""The rule for "trains to the same result" (docs/numerics.md; trainc/cli/loss_rule.py), and what it is under bf16 autocast."""

from __future__ import annotations

import math

from trainc.cli.loss_rule import SEEDS, SHARE, bounds, disturb, relative, violations

INITIAL = (0, 1, 2, 3)  # weights to start from, under bf16
MORE = (4, 5, 6, 11, 12, 13)  # where those four are beyond their limit, these decide with them, by the narrower limit of ten


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


__all__ = [
    "INITIAL", "MORE", "SEEDS", "SHARE", "bf16_limit", "bf16_ratio", "bounds", "disturb", "distance", "geometric_mean",
    "relative", "violations",
]  # fmt: skip
