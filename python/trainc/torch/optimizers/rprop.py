"""Rprop: a step size for each element, which grows while its gradient keeps its sign and shrinks where that changes."""

from __future__ import annotations

import torch

from trainc.torch.optimizers.formula import Formula


class Rprop(Formula):
    classes = (torch.optim.Rprop,)

    def states(self, v):
        return ("prev", "step_size")

    def scalars(self, v):
        return ("shrinks", "grows", "least", "most")

    def values(self, v, group, count):
        (shrinks, grows), (least, most) = group["etas"], group["step_sizes"]
        return {"shrinks": shrinks, "grows": grows, "least": least, "most": most}

    def update(self, v, param, grad, state, scalar):
        grad = -grad if v.has("maximize") else grad
        product = grad * state.prev
        # Also 1 where the product is NaN, for eager asks for its sign, which is 0 there.
        factor = torch.where(product > 0, scalar.grows, torch.where(product < 0, scalar.shrinks, 1.0))
        step_size = torch.minimum(torch.maximum(state.step_size * factor, scalar.least), scalar.most)
        grad = torch.where(product < 0, 0.0, grad)
        return param - grad.sign() * step_size, grad, step_size
