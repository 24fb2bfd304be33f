"""Adadelta: the gradient times the ratio of two running root mean squares, of the updates and of the gradients."""

from __future__ import annotations

import torch

from trainc.torch.optimizers.formula import Formula, decay_of, with_decay


class Adadelta(Formula):
    classes = (torch.optim.Adadelta,)

    def states(self, v):
        return ("square_avg", "acc_delta")

    def scalars(self, v):
        return ("rho", "rest", "eps", "step_size", *(("decay",) if v.has("weight_decay") else ()))

    def values(self, v, group, count):
        rho = group["rho"]
        return {"rho": rho, "rest": 1 - rho, "eps": group["eps"], "step_size": -group["lr"], "decay": decay_of(v, group)}

    def update(self, v, param, grad, state, scalar):
        param, grad = with_decay(v, param, grad, scalar)
        square_avg = state.square_avg * scalar.rho + scalar.rest * grad * grad
        delta = (state.acc_delta + scalar.eps).sqrt() / (square_avg + scalar.eps).sqrt() * grad
        acc_delta = state.acc_delta * scalar.rho + scalar.rest * delta * delta
        return param + scalar.step_size * delta, square_avg, acc_delta
