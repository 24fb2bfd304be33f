"""tune="max": who wins a race, that the answer is kept, and that the results are the same to the last bit."""

from __future__ import annotations

import math

import models
import pytest
import torch

import trainc
from trainc.base import records, tuning
from trainc.torch.doors import backend


@pytest.fixture(autouse=True)
def settings(monkeypatch, tmp_path):
    monkeypatch.setattr(trainc.config, "fallback", False)
    monkeypatch.setattr(trainc.config, "cache", True)
    monkeypatch.setattr(trainc.config, "cache_dir", str(tmp_path / "cache"))
    monkeypatch.setattr(trainc.config, "framework_calls", False)  # test_framework_calls.py: they have bits of their own
    torch._dynamo.reset()
    backend.compilations.clear()


def test_the_fastest_wins_but_for_noise():
    def race(times: list[list[float]]) -> tuple[int, list[int]]:
        runs = [iter(t) for t in times]
        asked = []

        def measure(variant: int) -> float:
            asked.append(variant)
            return next(runs[variant])

        return tuning.race(len(times), measure)[0], asked

    assert race([[1.0, 1.0], [0.5, 0.5], [2.0]]) == (1, [0, 1, 2, 0, 1])
    assert race([[1.0, 1.0], [0.99, 0.99]])[0] == 0  # too little to be sure of
    assert race([[1.0, 0.6], [0.7, 0.7]])[0] == 0  # something else ran beside the first
    assert race([[1.0, 1.0], [math.inf]]) == (0, [0, 1, 0])  # a repetition of another


def trained(name: str, tune: str, monkeypatch=None) -> tuple[list[float], list[records.Compilation]]:
    torch.manual_seed(0)
    case = models.build(name)
    model, optimizer = trainc.compile(case.model, torch.optim.AdamW(case.model.parameters(), lr=1e-3), tune=tune)
    found = models.train(case, model, optimizer, steps=3)
    return [*found, *(p.detach().double().sum().item() for p in case.model.parameters())], records.of(model)


@pytest.mark.parametrize("variant", [1, 4])
def test_every_way_gives_the_same_bits(variant, monkeypatch):
    wanted, _ = trained("gpt2", "fast")
    monkeypatch.setattr(tuning, "race", lambda variants, measure: (variant, {}))
    found, compilations = trained("gpt2", "max")
    assert found == wanted
    assert all(c.tune == "max" for c in compilations)


def test_it_measures_once(monkeypatch):
    races = []
    measured = tuning.race

    def race(variants, measure):
        races.append(variants)
        return measured(variants, measure)

    monkeypatch.setattr(tuning, "race", race)
    wanted, _ = trained("mlp", "fast")
    assert not races
    assert trained("mlp", "max")[0] == wanted
    count = len(races)
    assert count >= 3  # forward, and both gradients
    assert trained("mlp", "max")[0] == wanted
    assert len(races) == count  # the plans themselves are stored

    # Other plans, the same contractions: a loop of its own as one plan.
    torch.manual_seed(0)
    case = models.build("mlp")
    optimizer = torch.optim.AdamW(case.model.parameters(), lr=1e-3)

    @(lambda fn: trainc.train_step(fn, tune="max"))
    def step(**batch):
        loss = case.loss(case.model(**batch))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    step(**case.batches[0])
    assert len(races) < 2 * count


def test_through_the_other_door():
    torch.manual_seed(0)
    linear = torch.nn.Linear(40, 30)
    compiled = torch.compile(linear, backend="trainc", options={"tune": "max"})
    x = torch.randn(20, 40)
    torch.testing.assert_close(compiled(x), linear(x))
    assert backend.compilations[0].tune == "max"


@pytest.mark.parametrize("options, words", [({"tune": "most"}, "tune='most'"), ({"speed": 1}, "no option 'speed'")])
def test_unknown_options(options, words):
    with pytest.raises(Exception, match=words):
        torch.compile(torch.nn.Linear(4, 4), backend="trainc", options=options)(torch.randn(2, 4))
    with pytest.raises(trainc.UserError, match="tune="):
        trainc.train_step(lambda: None, tune="most")
