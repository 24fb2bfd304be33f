"""Adamax: Adam with the largest gradient so far, decaying, in the place of the root of the second moment."""

from __future__ import annotations

import torch

from trainc.torch.optimizers.formula import Averaging, decay_of, lerp, lerp_weight, with_decay


class Adamax(Averaging):
    classes = (torch.optim.Adamax,)

    def states(self, v):
        return ("exp_avg", "exp_inf")

    def scalars(self, v):
        return ("weight", "beta2", "eps", "step_size", *(("decay",) if v.has("weight_decay") else ()))

    def values(self, v, group, count):
        (step,), (beta1, beta2) = count.new, group["betas"]
        return {
            "weight": lerp_weight(v, 1 - beta1), "beta2": beta2, "eps": group["eps"],
            "step_size": -(group["lr"] / (1 - beta1**step)), "decay": decay_of(v, group),
        }  # fmt: skip

    def update(self, v, param, grad, state, scalar):
        param, grad = with_decay(v, param, grad, scalar)
        exp_avg = lerp(v, state.exp_avg, grad, scalar.weight)
        exp_inf = torch.maximum(state.exp_inf * scalar.beta2, grad.abs() + scalar.eps)
        return param + scalar.step_size * exp_avg / exp_inf, exp_avg, exp_inf
