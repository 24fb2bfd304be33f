"""RAdam: Adam whose adaptive learning rate waits until its variance is known well enough, which the step's number tells."""

from __future__ import annotations

import torch

from trainc.torch.optimizers.formula import Averaging, decay_of, lerp, lerp_weight, with_decay


class RAdam(Averaging):
    classes = (torch.optim.RAdam,)

    def scalars(self, v):
        decay = ("decay",) if v.has("weight_decay") else ()
        return ("weight", "beta2", "rest2", "bias1", "bias2_sqrt", "eps", "lr", "rectified", "rectification", *decay)

    def values(self, v, group, count):
        (step,), (beta1, beta2) = count.new, group["betas"]
        bias2 = 1 - beta2**step
        rho_inf = 2 / (1 - beta2) - 1  # the longest that the moving average becomes
        rho = rho_inf - 2 * step * (beta2**step) / bias2  # its length now
        rectified = rho > 5.0
        rectification = 1.0
        if rectified:
            rectification = ((rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho)) ** 0.5
        return {
            "weight": lerp_weight(v, 1 - beta1), "beta2": beta2, "rest2": 1 - beta2, "bias1": 1 - beta1**step,
            "bias2_sqrt": bias2**0.5, "eps": group["eps"], "lr": group["lr"], "rectified": float(rectified),
            "rectification": rectification, "decay": decay_of(v, group),
        }  # fmt: skip

    def update(self, v, param, grad, state, scalar):
        param, grad = with_decay(v, param, grad, scalar)
        exp_avg = lerp(v, state.exp_avg, grad, scalar.weight)
        exp_avg_sq = state.exp_avg_sq * scalar.beta2 + scalar.rest2 * grad * grad
        plain = exp_avg / scalar.bias1 * scalar.lr
        adaptive = plain * (scalar.bias2_sqrt / (exp_avg_sq.sqrt() + scalar.eps)) * scalar.rectification
        # One kernel for both: a step of train_step is not compiled again when the rectification sets in.
        return param - torch.where(scalar.rectified > 0, adaptive, plain), exp_avg, exp_avg_sq
