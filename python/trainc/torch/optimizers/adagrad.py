"""Adagrad: the gradient over the root of the sum of all squares so far."""

from __future__ import annotations

import torch

from trainc.torch.optimizers.formula import Formula, decay_of, with_decay


class Adagrad(Formula):
    classes = (torch.optim.Adagrad,)

    def states(self, v):
        return ("sum",)

    def scalars(self, v):
        return ("eps", "step_size", *(("decay",) if v.has("weight_decay") else ()))

    def values(self, v, group, count):
        (step,) = count.new
        step_size = -(group["lr"] / (1 + (step - 1) * group["lr_decay"]))
        return {"eps": group["eps"], "step_size": step_size, "decay": decay_of(v, group)}

    def update(self, v, param, grad, state, scalar):
        param, grad = with_decay(v, param, grad, scalar)
        total = state.sum + grad * grad
        return param + scalar.step_size * grad / (total.sqrt() + scalar.eps), total
