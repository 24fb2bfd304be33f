"""Gradients that are a tensor of the program's, unchanged: `.grad` has memory of its own, which optimizers write to."""

import pytest
import torch
from conftest import DOORS
from torch import nn

import trainc


class Given(torch.autograd.Function):
    """0 of `a`, whose gradient is `other` as it is."""

    @staticmethod
    def forward(ctx, a, other):
        ctx.save_for_backward(other)
        return a.new_zeros(())

    @staticmethod
    def backward(ctx, gradient):
        return ctx.saved_tensors[0], None


class Model(nn.Module):
    """`of`: whose memory the gradient of w would be."""

    def __init__(self, of):
        super().__init__()
        self.w = nn.Parameter(torch.linspace(-1, 1, 4))
        self.v = nn.Parameter(torch.linspace(1, 2, 4))
        self.register_buffer("b", torch.linspace(0.5, 2, 4))
        self.of = of

    def forward(self, x):
        if self.of == "hook":
            h = self.w * 1
            h.register_hook(lambda gradient: self.v.detach())
            return h.sum()
        return Given.apply(self.w, {"w": self.w, "v": self.v, "b": self.b, "x": x}[self.of]) + self.v.sum()


def trained(model, call, x):
    """What is there after each of three steps with all that writes to a gradient in place."""
    optimizer = torch.optim.SGD([model.w], lr=0.1)
    seen = []
    for _ in range(3):
        optimizer.zero_grad(set_to_none=False)
        for _ in range(2):  # the second is added to the first
            call(x).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        seen += [t.detach().clone() for t in (model.w, model.v, model.b, x, model.w.grad)]
    return seen


@pytest.mark.parametrize("door", [*DOORS, "fuse_step"])
@pytest.mark.parametrize("of", ["w", "v", "b", "x", "hook"])
def test_what_is_written_to_a_gradient_is_written_nowhere_else(core, door, of):
    plain, model = Model(of), Model(of)
    if door == "fuse_step":
        call = trainc.compile(model, torch.optim.SGD([model.w], lr=0.1), fuse_step=True)[0]
    else:
        call = DOORS[door](model)
    torch.testing.assert_close(trained(model, call, torch.linspace(3, 4, 4)), trained(plain, plain, torch.linspace(3, 4, 4)))


@pytest.mark.parametrize("of", ["w", "v", "b", "x"])
def test_a_gradient_that_a_step_leaves(core, of):
    """Of v nobody steps: its gradient is left, and the program writes to it."""
    found = []
    for compiled in (False, True):
        model, x = Model(of), torch.linspace(3, 4, 4)
        optimizer = torch.optim.SGD([model.v], lr=0.1)

        def step(x, model=model, optimizer=optimizer):
            optimizer.zero_grad()
            loss = model(x)
            loss.backward()
            optimizer.step()
            return loss.detach()

        step = trainc.train_step(step) if compiled else step
        step(x)
        if model.w.grad is not None:
            model.w.grad.zero_()
        found.append([t.detach().clone() for t in (model.w, model.v, model.b, x)])
    torch.testing.assert_close(*found)
