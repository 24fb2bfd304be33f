"""Activation checkpoints: what PyTorch's second run would do beyond computing the same again is done, by PyTorch."""

import copy
import warnings

import pytest
import torch
from conftest import assert_same, gradients
from torch import nn
from torch.utils.checkpoint import checkpoint

import trainc
from trainc.base import records


class Block(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind, self.linear, self.norm = kind, nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x):
        if self.kind == "statistics":
            return self.norm(self.linear(x))
        if self.kind == "buffer":
            self.seen += x.detach().sum(0)
        if self.kind == "argument":
            x.detach().mul_(2)
            x = x.clone()
        if self.kind == "draws":
            x = nn.functional.dropout(x, 0.5)
        if self.kind == "own":
            x = x * 1
            x.mul_(2)
        return torch.tanh(self.linear(x))


class Model(nn.Module):
    def __init__(self, kind, reentrant, preserves):
        super().__init__()
        self.block, self.how = Block(kind), {"use_reentrant": reentrant, "preserve_rng_state": preserves}

    def forward(self, x):
        return checkpoint(self.block, x * 3, **self.how) * checkpoint(self.block, x * 2, **self.how)


def trained(model, *, learns=True):
    """What is there after two steps: results, gradients, buffers, the generator's state, and how the model ran."""
    torch.manual_seed(3)
    found = []
    for _ in range(2):
        x = torch.randn(3, 4).requires_grad_(learns)
        result = model(x)
        if result.requires_grad:
            result.square().sum().backward()
        found += [result.detach(), gradients(model), dict(model.named_buffers()), x.grad, torch.rand(2)]
    return found, [r.route for r in records.of(model)]


@pytest.mark.parametrize(
    "kind, preserves, compiled, reentrant",
    [
        *[(*case, reentrant) for reentrant in (False, True) for case in (
            ("statistics", True, False), ("buffer", True, False), ("draws", False, False), ("draws", True, True),
            ("own", True, True), ("own", False, True),
        )],
        ("argument", True, False, True),  # PyTorch refuses that of the other kind
    ],
)  # fmt: skip
def test_what_a_second_run_does_is_done(kind, preserves, compiled, reentrant):
    plain = Model(kind, reentrant, preserves)
    ours = trainc.compile(copy.deepcopy(plain))
    expected, (found, routes) = trained(plain)[0], trained(ours)
    assert_same(found, expected)
    assert routes == (["compiled"] if compiled else ["eager"])


def test_statistics_that_rest_are_compiled(strict):
    plain = Model("statistics", False, True).eval()
    ours = trainc.compile(copy.deepcopy(plain))
    assert_same(trained(ours)[0], trained(plain)[0])
    assert [r.route for r in records.of(ours)] == ["compiled"]


def test_nothing_learns_in_a_reentrant_checkpoint_whose_arguments_do_not(strict):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.second(checkpoint(self.first, x, use_reentrant=True))

    plain = Two()
    ours = trainc.compile(copy.deepcopy(plain))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected, found = trained(plain, learns=False), trained(ours, learns=False)
    assert plain.first.weight.grad is None and plain.second.weight.grad is not None
    assert_same(found[0], expected[0])
    assert ours.first.weight.grad is None and found[1] == ["compiled"]


def test_a_reentrant_checkpoint_gives_what_an_autograd_function_gives():
    class Detached(nn.Module):
        def forward(self, x):
            return checkpoint(lambda x: (x * 2, x.detach() * 3), x, use_reentrant=True)

    for model in (Detached(), trainc.compile(Detached())):
        results = model(torch.randn(2, 3, requires_grad=True))
        assert all(r.requires_grad for r in results)


def test_a_step_refuses_a_checkpoint_that_writes():
    model = Model("statistics", False, True)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    @trainc.train_step
    def step(x):
        loss = model(x).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    with pytest.raises(trainc.UserError, match="a checkpoint writes a tensor that stays"):
        step(torch.randn(3, 4))
