"""What a training loop keeps in its model, and forward does not read, is no part of a signature: lists of rewards and of log
probabilities, counters. What some code reads later is, from then on."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import trainc


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)
        self.kept, self.rewards, self.calls, self.scale, self.shift = [], [], 0, 1.0, 1.0
        self.weights = [self.last.weight]

    def forward(self, x):
        x = self.last(self.first(x).relu() * self.scale)
        return torch.softmax(x if self.training else shifted(self, x), 1)


def shifted(model, x):
    return x * model.shift + model.weights[0].sum()


class Dynamic(Policy):
    def forward(self, x):
        return super().forward(x) + sum(getattr(self, name) for name in ("ca" + "lls",))


def pair(kind=Policy):
    torch.manual_seed(0)
    eager = kind()
    compiled = copy.deepcopy(eager)
    compiled.weights = [compiled.last.weight]
    return trainc.compile(compiled), eager


def same(models, x, then=lambda model, result: None) -> None:
    results = [model(x) for model in models]
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-6)
    for model, result in zip(models, results, strict=True):
        then(model, result)


def learn(model) -> torch.Tensor:
    model.zero_grad()
    sum(kept.sum() * reward for kept, reward in zip(model.kept, model.rewards, strict=True)).backward()
    model.kept.clear(), model.rewards.clear()
    return model.first.weight.grad.clone()


def test_what_a_loop_keeps_in_its_model(monkeypatch):
    monkeypatch.setattr(trainc.config, "fallback", False)
    models = pair()

    def keep(model, result):
        model.kept.append(result[:, 0].log())
        model.rewards.append(len(model.rewards) - 1.5)
        model.calls += 1

    for step in range(12):
        if step == 9:  # lists that hold tensors do not stop another trace
            models[0].scale = models[1].scale = 2.0
        same(models, torch.randn(3, 4), keep)
        if step % 4 == 3:
            torch.testing.assert_close(*map(learn, models), rtol=1e-4, atol=1e-5)
    found = trainc.explain(models[0]).compilations
    assert [compilation.route for compilation in found] == ["compiled"] * 2  # one for each scale


def test_what_other_code_reads_later_counts_from_then_on():
    models = pair()
    for shift, training in ((1.0, True), (2.0, True), (3.0, False), (4.0, False), (5.0, True), (3.0, False), (1.0, False)):
        for model in models:
            model.train(training)
            model.shift = shift
        for _ in range(2):
            same(models, torch.randn(3, 4))
    for model in models:  # a list of the model's own parameters, which evaluation alone reads
        with torch.no_grad():
            model.last.weight.add_(1)
    same(models, torch.randn(3, 4))
    assert {compilation.route for compilation in trainc.explain(models[0]).compilations} == {"compiled"}


@pytest.mark.filterwarnings("ignore")
def test_attributes_that_are_read_by_computed_names_count():
    models = pair(Dynamic)
    for calls in (0, 1, 1, 5):
        for model in models:
            model.calls = calls
        same(models, torch.randn(3, 4))


@pytest.mark.filterwarnings("ignore")
def test_a_list_of_foreign_tensors_is_named_as_the_reason():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.last = nn.Linear(2, 2), [torch.ones(2)]

        def forward(self, x):
            return self.layer(x) + self.last[0]

    net = trainc.compile(Net())
    weight = net.layer.weight
    net(torch.ones(1, 2)).sum().backward()
    assert net.layer.weight is weight and weight.grad is not None
    assert "a module keeps tensors in a list" in str(trainc.explain(net))
