"""Backwards of the program's own that ask which gradients there are (`set_materialize_grads(False)`): a plan is made for the loss
alone, with None for the others, as eager hands them; what else somebody differentiates, PyTorch does again."""

import warnings

import pytest
import torch
from conftest import DOORS, assert_same, gradients
from torch import nn

import trainc

HANDED = []


class Two(torch.autograd.Function):
    """Of x: its exponential, and what somebody may log. Without a gradient of the second, the first's is another."""

    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x)
        return x.exp(), x.sin()

    @staticmethod
    def backward(ctx, first, second):
        (x,) = ctx.saved_tensors
        if second is None:
            return first * x.exp()
        return (second if first is None else first * x.exp() + second) * x.cos() * 2


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x):
        hidden = self.linear(x)
        first, second = Two.apply(hidden)
        return {"loss": first.mean(), "logged": second.sum(1), "hidden": hidden}


LOSSES = {
    "alone": lambda out: out["loss"],
    "scaled": lambda out: out["loss"] * 3,
    "beside": lambda out: out["loss"] + out["logged"].mean(),
    "the other": lambda out: out["logged"].mean(),
    "an earlier one": lambda out: out["loss"] + out["hidden"].square().mean(),
}


def steps(model, loss_of, count=3):
    torch.manual_seed(1)
    found = []
    for _ in range(count):
        x = torch.randn(5, 4, requires_grad=True)
        out = model(x)
        model.zero_grad()
        loss_of(out).backward()
        found += [*out.values(), x.grad, *[g.clone() for g in gradients(model).values()]]
    return found


@pytest.mark.parametrize("waiting", [False, True])  # two calls before the first backward
def test_the_results_that_a_loss_is_made_of_are_learned(core, waiting):
    """PyTorch does the first call again; the next ones have a plan."""
    found = []
    for wrap in (lambda m: m, trainc.compile):
        torch.manual_seed(0)
        model = wrap(Model())
        if waiting:
            outs = [model(torch.full((5, 4), float(i))) for i in range(2)]
            for out in outs:
                LOSSES["the other"](out).backward()
        found.append(steps(model, LOSSES["the other"], 4))
    assert_same(found[1], found[0])
    assert "runs in PyTorch" not in str(trainc.explain(model))


@pytest.mark.parametrize("door", sorted({*DOORS} - {"torch"}))  # Dynamo itself hands zeros, with any backend
@pytest.mark.parametrize("name", LOSSES)
def test_gradients_are_eagers(core, door, name):
    torch.manual_seed(0)
    plain = Model()
    torch.manual_seed(0)
    compiled = DOORS[door](Model())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = steps(compiled, LOSSES[name])
    assert_same(found, steps(plain, LOSSES[name]))
    assert all(value.requires_grad for value in compiled(torch.randn(5, 4)).values())


def test_the_loss_alone_is_compiled(core):
    model = trainc.compile(Model())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        steps(model, LOSSES["alone"])
    assert "compiled for 1 signature" in str(trainc.explain(model)) and "run in PyTorch" not in str(trainc.explain(model))


def test_hooks_on_what_the_loss_is_made_of_are_refused_and_then_eagers(core):
    found = []
    for wrap in (lambda m: m, trainc.compile):
        torch.manual_seed(0)
        model, seen = wrap(Model()), []
        for _ in range(2):
            out = model(torch.ones(5, 4))
            try:
                out["hidden"].register_hook(lambda g, seen=seen: seen.append(g))
            except trainc.UserError:
                continue
            out["loss"].backward()
        found.append(seen)
    assert len(found[0]) == 2 and len(found[1]) >= 1
    assert_same(found[1][-1], found[0][-1])
