"""RMSprop: the gradient over a running root mean square; centred, with momentum, or neither."""

from __future__ import annotations

import torch

from trainc.torch.optimizers.formula import Formula, chosen, decay_of, from_end, lerp, lerp_weight, with_decay


class RMSprop(Formula):
    classes = (torch.optim.RMSprop,)

    def flags(self, group):
        centered = group["centered"]
        own = chosen(momentum=group["momentum"] > 0, centered=centered, lerp_from_end=centered and from_end(1 - group["alpha"]))
        return super().flags(group) | own

    def states(self, v):
        momentum = ("momentum_buffer",) if v.has("momentum") else ()
        return ("square_avg", *momentum, *(("grad_avg",) if v.has("centered") else ()))

    def scalars(self, v):
        optional = {"weight": v.has("centered"), "decay": v.has("weight_decay"), "momentum": v.has("momentum")}
        return ("alpha", "rest", "eps", "step_size", *(name for name, reads in optional.items() if reads))

    def values(self, v, group, count):
        return {
            "alpha": group["alpha"], "rest": 1 - group["alpha"], "weight": lerp_weight(v, 1 - group["alpha"]),
            "eps": group["eps"], "step_size": -group["lr"], "decay": decay_of(v, group), "momentum": group["momentum"],
        }  # fmt: skip

    def update(self, v, param, grad, state, scalar):
        param, grad = with_decay(v, param, grad, scalar)
        square_avg = state.square_avg * scalar.alpha + scalar.rest * grad * grad
        square, grad_avg, buffer = square_avg, (), ()
        if v.has("centered"):
            mean = lerp(v, state.grad_avg, grad, scalar.weight)
            # Eager rounds product and difference once (FMA): where both squares are too large for the type, infinity remains.
            square = square_avg - torch.where(square_avg == torch.inf, mean.abs(), mean * mean)
            grad_avg = (mean,)
        avg = square.sqrt() + scalar.eps
        if v.has("momentum"):
            direction = state.momentum_buffer * scalar.momentum + grad / avg
            param, buffer = param + scalar.step_size * direction, (direction,)
        else:
            param = param + scalar.step_size * grad / avg
        return param, square_avg, *buffer, *grad_avg
