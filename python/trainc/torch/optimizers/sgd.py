"""SGD, with momentum or without.

Eager's first step makes the momentum buffer: a copy of the gradient. Here it is a later step over a buffer of negative
zeros, with the factor 1 in the place of 1 - dampening: -0.0 + x is x to the bit.
"""

from __future__ import annotations

import torch

from trainc.torch.optimizers.formula import Formula, chosen, with_decay


class SGD(Formula):
    classes = (torch.optim.SGD,)
    numbers = ()

    def flags(self, group):
        return super().flags(group) | chosen(momentum=group["momentum"] != 0, nesterov=group["nesterov"])

    def states(self, v):
        return ("momentum_buffer",) if v.has("momentum") else ()

    def start(self, name, param):
        return torch.full_like(param, -0.0)

    def scalars(self, v):
        decay = ("decay",) if v.has("weight_decay") else ()
        return (*decay, *(("momentum", "rest") if v.has("momentum") else ()), "step_size")

    def values(self, v, group, count):
        rest = 1.0 if count.first else 1 - group["dampening"]
        return {"decay": group["weight_decay"], "momentum": group["momentum"], "rest": rest, "step_size": -group["lr"]}

    def update(self, v, param, grad, state, scalar):
        param, grad = with_decay(v, param, grad, scalar)
        if not v.has("momentum"):
            return (param + scalar.step_size * grad,)
        buffer = state.momentum_buffer * scalar.momentum + scalar.rest * grad
        direction = grad + buffer * scalar.momentum if v.has("nesterov") else buffer
        return param + scalar.step_size * direction, buffer
