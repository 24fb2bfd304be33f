"""Networks of the kinds that people write themselves (networks.py) train, through both doors, to eager's losses."""

from __future__ import annotations

import functools

import loss_rule
import models
import networks
import pytest
import torch
from conftest import DOORS

import trainc
from trainc.base import records
from trainc.torch.doors import backend

STEPS = 4
SPLIT = ("gru_packed", "lstm_packed", "moe_sparse")  # sizes that are data


def train(name: str, door=lambda model: model, disturbance: int = 0) -> list[float]:
    case = models.build(name)
    if disturbance:
        loss_rule.disturb(case.model, disturbance)
    call, optimizer = door(case.model), torch.optim.AdamW((p for p in case.model.parameters() if p.requires_grad), lr=1e-3)
    follow = getattr(case.model, "follow", lambda: None)  # a teacher
    torch.manual_seed(7)
    losses = []
    for step in range(STEPS):
        loss = case.step_loss(step, call)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        follow()
        losses.append(loss.item())
    return losses


eager = functools.cache(functools.partial(train, door=lambda model: model))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", networks.BUILDERS)
@pytest.mark.filterwarnings("ignore::trainc.base.messages.TraincWarning")  # of what is split
def test_it_trains_as_eager_does(name, door, monkeypatch):
    monkeypatch.setattr(trainc.config, "fallback", False)
    backend.compilations.clear()
    kept = []
    found = train(name, lambda model: kept.append(model) or DOORS[door](model))
    broken = loss_rule.violations(found, eager(name), [eager(name, disturbance=seed) for seed in loss_rule.SEEDS])
    assert not broken, "\n".join(broken)
    made = [*records.of(kept[0]), *backend.compilations]
    assert all(record.engine == "core" for record in made if record.route != "split")
    if door == "trainc":
        assert [record.route for record in records.of(kept[0])] == ["split" if name in SPLIT else "compiled"]


def test_the_rule_sees_a_teacher_that_does_not_follow(monkeypatch):
    wanted, disturbed = eager("teacher"), [eager("teacher", disturbance=seed) for seed in loss_rule.SEEDS]
    monkeypatch.setattr(networks.Teacher, "follow", lambda self: None)
    assert loss_rule.violations(train("teacher"), wanted, disturbed)
