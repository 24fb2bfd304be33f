"""NAdam: Adam with Nesterov's momentum, whose schedule `mu` the host keeps: its product over all steps is in the state."""

from __future__ import annotations

import torch

from trainc.torch.optimizers.formula import Averaging, decay_of, lerp, lerp_weight, rounded, with_decay


def momentum(group, step):
    return group["betas"][0] * (1.0 - 0.5 * (0.96 ** (step * group["momentum_decay"])))


class NAdam(Averaging):
    classes = (torch.optim.NAdam,)
    numbers = ("step", "mu_product")

    def advance(self, group, old, dtypes):
        (step, product), (of_step, of_product) = old, dtypes
        step = rounded(step + 1, of_step)
        # Eager multiplies a tensor by a number: in the tensor's type, to which the number is rounded first.
        return step, rounded(product * rounded(momentum(group, step), of_product), of_product)

    def scalars(self, v):
        decay = ("decay",) if v.has("weight_decay") else ()
        return ("weight", "beta2", "rest2", "bias2", "eps", "of_grad", "of_average", *decay)

    def values(self, v, group, count):
        (step, product), (beta1, beta2), lr = count.new, group["betas"], group["lr"]
        mu, mu_next = momentum(group, step), momentum(group, step + 1)
        return {
            "weight": lerp_weight(v, 1 - beta1), "beta2": beta2, "rest2": 1 - beta2, "bias2": 1 - beta2**step,
            "eps": group["eps"], "of_grad": -lr * (1.0 - mu) / (1.0 - product),
            "of_average": (-lr * mu_next) / (1.0 - product * mu_next), "decay": decay_of(v, group),
        }  # fmt: skip

    def update(self, v, param, grad, state, scalar):
        param, grad = with_decay(v, param, grad, scalar)
        exp_avg = lerp(v, state.exp_avg, grad, scalar.weight)
        exp_avg_sq = state.exp_avg_sq * scalar.beta2 + scalar.rest2 * grad * grad
        denom = (exp_avg_sq / scalar.bias2).sqrt() + scalar.eps
        param = param + scalar.of_grad * grad / denom
        return param + scalar.of_average * exp_avg / denom, exp_avg, exp_avg_sq
