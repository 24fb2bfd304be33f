"""Adam and AdamW, which are one formula with two ways of weight decay.

The maximum of amsgrad is NaN from a NaN on. Eager's fused kernel has that for whole vectors, too; the scalar code behind them
keeps the old maximum.
"""

from __future__ import annotations

import torch

from trainc.torch.optimizers.formula import Averaging, chosen, decay_of, lerp, lerp_weight, with_decay


class Adam(Averaging):
    classes = (torch.optim.AdamW, torch.optim.Adam)

    def flags(self, group):
        return super().flags(group) | chosen(amsgrad=group["amsgrad"])

    def states(self, v):
        return (*super().states(v), *(("max_exp_avg_sq",) if v.has("amsgrad") else ()))

    def scalars(self, v):
        return ("weight", "beta2", "rest2", "bias2_sqrt", "eps", "step_size", *(["decay"] if v.has("weight_decay") else []))

    def values(self, v, group, count):
        (step,), (beta1, beta2) = count.new, group["betas"]
        return {
            "weight": lerp_weight(v, 1 - beta1), "beta2": beta2, "rest2": 1 - beta2, "bias2_sqrt": (1 - beta2**step) ** 0.5,
            "eps": group["eps"], "step_size": -(group["lr"] / (1 - beta1**step)), "decay": decay_of(v, group),
        }  # fmt: skip

    def update(self, v, param, grad, state, scalar):
        param, grad = with_decay(v, param, grad, scalar)
        exp_avg = lerp(v, state.exp_avg, grad, scalar.weight)
        exp_avg_sq = state.exp_avg_sq * scalar.beta2 + scalar.rest2 * grad * grad
        second, largest = exp_avg_sq, ()
        if v.has("amsgrad"):
            second = torch.maximum(state.max_exp_avg_sq, exp_avg_sq)
            largest = (second,)
        denom = second.sqrt() / scalar.bias2_sqrt + scalar.eps
        return param + scalar.step_size * exp_avg / denom, exp_avg, exp_avg_sq, *largest

    def title(self, v):
        return "AdamW" if v.has("decoupled") else "Adam"
