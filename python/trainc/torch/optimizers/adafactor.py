"""Adafactor: the second moment of a matrix as the product of a row and a column, which are means over it.

Not elementwise: the norms of the parameter and of the update scale the step. So there is a plan for each shape of a
parameter, compiled like any graph, and no update within the plan of a train_step. Eager's `max(number, norm)` is Python's,
which takes the number where the norm is NaN.
"""

from __future__ import annotations

import math

import torch

from trainc.torch.optimizers.formula import Formula, with_decay


class Adafactor(Formula):
    classes = (torch.optim.Adafactor,)
    elementwise = False

    def flags(self, group):
        return super().flags(group) | {"decoupled"}

    def states(self, v):
        return ("row_var", "col_var") if len(v.shape) > 1 else ("variance",)

    def shapes(self, v, shape):
        return [(*shape[:-1], 1), (*shape[:-2], 1, shape[-1])] if len(shape) > 1 else [tuple(shape)]

    def state_bytes(self, v, param):
        return sum(map(math.prod, self.shapes(v, param.shape))) * param.element_size()

    def settings(self, group, params):
        """Eager's default of the first epsilon is the type's of the group's first parameter, for all of them."""
        eps1, eps2 = group["eps"]
        if eps1 is not None or not params:
            return group
        return {**group, "eps": (torch.finfo(params[0].dtype).eps, eps2)}

    def scalars(self, v):
        return ("weight", "rest", "rho", "eps1", "eps1_square", "eps2", "d", *(("decay",) if v.has("weight_decay") else ()))

    def values(self, v, group, count):
        (step,), (eps1, eps2) = count.new, group["eps"]
        weight = step ** group["beta2_decay"]
        return {
            "weight": weight, "rest": 1 - weight, "rho": min(group["lr"], 1 / (step**0.5)), "eps1": eps1,
            "eps1_square": eps1 * eps1, "eps2": eps2, "d": group["d"], "decay": 1 - group["lr"] * group["weight_decay"],
        }  # fmt: skip

    def update(self, v, param, grad, state, scalar):
        alpha = at_least(scalar.eps2, root_mean_square(param)) * scalar.rho
        param, grad = with_decay(v, param, grad, scalar)
        if len(v.shape) > 1:
            row = lerp(state.row_var, (grad * grad).sum(-1, keepdim=True) / v.shape[-1], scalar)
            col = lerp(state.col_var, (grad * grad).sum(-2, keepdim=True) / v.shape[-2], scalar)
            variance = row * col / torch.maximum(row.mean(-2, keepdim=True), scalar.eps1)
            states = (row, col)
        else:
            variance = lerp(state.variance, grad * grad, scalar)
            states = (variance,)
        step = torch.maximum(variance, scalar.eps1_square).rsqrt() * grad
        denom = at_least(torch.ones_like(scalar.d), root_mean_square(step) / scalar.d)
        return param - alpha / denom * step, *states


def root_mean_square(x):
    return (x * x).sum().sqrt() / x.numel() ** 0.5


def at_least(number, x):
    return torch.where(x > number, x, number)


def lerp(start, end, scalar):
    """torch.lerp, whose weight falls below a half within the first steps: one plan for both of its ways."""
    return torch.where(
        scalar.weight >= 0.5, end - (end - start) * scalar.rest, start + scalar.weight * (end - start)
    )  # fmt: skip
