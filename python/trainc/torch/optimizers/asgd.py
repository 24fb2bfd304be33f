"""ASGD: SGD with a decaying rate `eta`, and beside it the average `ax` of the parameters, whose weight `mu` starts at 1.

A step uses the rate and the weight that the step before it left in the state. Eager's foreach variant is a formula of its own:
where a parameter is infinite it gives NaN, and the single-tensor variant infinity.
"""

from __future__ import annotations

import torch

from trainc.torch.compat import default_to_fused_or_foreach
from trainc.torch.optimizers.formula import Formula, chosen, rounded, with_decay


class ASGD(Formula):
    classes = (torch.optim.ASGD,)
    numbers = ("step", "eta", "mu")

    def flags(self, group):
        return super().flags(group) | chosen(foreach=group["foreach"])

    def states(self, v):
        return ("ax",)

    def settings(self, group, params):
        if group["foreach"] is not None:
            return group
        return {**group, "foreach": default_to_fused_or_foreach(params, group["differentiable"], use_fused=False)[1]}

    def advance(self, group, old, dtypes):
        step, lr = rounded(old[0] + 1, dtypes[0]), group["lr"]
        # The foreach variant computes the rate in the type of the step, which seven digits of it show.
        of_rate = torch.tensor(step, dtype=dtypes[0], device="cpu") if group["foreach"] else step
        eta = lr / ((1 + group["lambd"] * lr * of_rate) ** group["alpha"])
        mu = 1 / max(1, step - group["t0"])
        # Eager makes tensors of numbers, of PyTorch's default type, and copies these.
        eta, mu = (torch.as_tensor(value, device="cpu").item() for value in (eta, mu))
        return step, rounded(eta, dtypes[1]), rounded(mu, dtypes[2])

    def scalars(self, v):
        own = "lambd" if v.has("foreach") else "shrink"
        return (own, "step_size", "mu", *(("decay",) if v.has("weight_decay") else ()))

    def values(self, v, group, count):
        _, eta, mu = count.old
        lambd = group["lambd"]
        return {"lambd": lambd, "shrink": 1 - lambd * eta, "step_size": -eta, "mu": mu, "decay": group["weight_decay"]}

    def update(self, v, param, grad, state, scalar):
        param, grad = with_decay(v, param, grad, scalar)
        if v.has("foreach"):
            param = param + scalar.step_size * (grad + scalar.lambd * param)
            return param, state.ax + (param - state.ax) * scalar.mu
        param = param * scalar.shrink + scalar.step_size * grad
        average = state.ax + (param - state.ax) * scalar.mu
        return param, torch.where(scalar.mu == 1, param, average)
