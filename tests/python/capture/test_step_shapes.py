"""New sizes of a train_step: as for trainc.compile (test_shapes.py), the second shape is traced with symbols, further ones
are not traced; each has a plan of its own, with the bits of a train_step that saw this shape alone."""

from __future__ import annotations

import copy
import warnings

import models
import pytest
import torch
from conftest import assert_same
from modules import Branches, Constant
from torch import nn

import trainc
from trainc.base import config, messages, records


class Loop:
    """A model, its optimizer and the body of its loop."""

    def __init__(self, model, loss, optimizer=torch.optim.AdamW, clip=None, **settings):
        self.model, self.loss, self.clip = model, loss, clip
        self.optimizer = optimizer(model.parameters(), **settings)

    def step(self, **batch):
        loss = self.loss(self.model(**batch))
        loss.backward()
        if self.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss


def of_case(name, **settings):
    case = models.build(name)
    return Loop(case.model, case.loss, lr=1e-3, **settings)


def state_of(loop):
    state = loop.optimizer.state_dict()["state"]
    return [*loop.model.state_dict().values(), *(t for one in state.values() for t in one.values() if t is not None)]


def equal(a, b):
    return all(torch.equal(x, y) for x, y in zip(state_of(a), state_of(b), strict=True))


def traces(run):
    return [record.trace for record in records.of(run)]


def tokens(batch, length):
    ids = torch.randint(4, 500, (batch, length), generator=torch.Generator().manual_seed(batch * 1000 + length))
    return {"input_ids": ids, "labels": ids.clone()}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_sizes_give_the_bits_of_a_trace_of_their_own(engine, strict, name):
    loop = of_case(name)
    run = trainc.train_step(loop.step)
    run(**tokens(4, 32))
    for shape in [(2, 13), (3, 11), (2, 30)]:
        alone = copy.deepcopy(loop)
        results = []
        for step in (trainc.train_step(alone.step), run):
            torch.manual_seed(5)
            results.append(step(**tokens(*shape)))
        assert torch.equal(*results) and equal(loop, alone)
    assert traces(run) == ["static", "symbolic", "sizes", "sizes"]
    assert all(record.engine == engine for record in records.of(run))


def test_ten_lengths_and_a_smaller_batch_are_two_traces(engine, strict):
    """With a scheduler, betas that change, clipping, and dropout that draws what eager draws."""

    def train(compiled):
        torch.manual_seed(0)
        loop = of_case("gpt2", clip=1.0)
        schedule = torch.optim.lr_scheduler.StepLR(loop.optimizer, 3, gamma=0.7)

        def step(**batch):
            loss = loop.step(**batch)
            schedule.step()
            return loss

        run, losses = trainc.train_step(step) if compiled else step, []
        for i, shape in enumerate([*((4, 21 + 2 * k) for k in range(10)), (3, 40), (4, 21)]):
            loop.optimizer.param_groups[0]["betas"] = (0.9 - i / 100, 0.99)
            losses.append(run(**tokens(*shape)).item())
        return losses, loop, torch.get_rng_state(), run

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", messages.RecompileWarning)
        losses, loop, masks, run = train(True)
    wanted = train(False)
    assert losses == pytest.approx(wanted[0], rel=1e-4)
    assert torch.equal(masks, wanted[2])
    assert loop.optimizer.param_groups[0]["lr"] == wanted[1].optimizer.param_groups[0]["lr"]
    assert traces(run) == ["static", "symbolic", *["sizes"] * 9]
    told = [str(w.message) for w in said if issubclass(w.category, messages.RecompileWarning)]
    assert len(told) == 1 and "step is compiled again: dimension 1 of `input_ids` changed from 21 to 23" in told[0]
    assert "dimension 0 of `input_ids` changed from 4 to 3" in records.of(run)[10].recompiled
    if engine == "core":
        assert "no trace: other sizes of an earlier one" in str(trainc.explain(run))


class Images(nn.Module):
    """Buffers that a forward writes, a tensor that it makes, dropout, and sizes of every kind."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.head, self.drop = nn.Linear(8, 5), nn.Dropout(0.3)

    def forward(self, x):
        h = nn.functional.max_pool2d(self.norm(self.conv(x)).relu(), 2)
        h = h.flatten(2).transpose(1, 2) * (1 / (h.shape[0] + 1))
        return self.head(self.drop(h)).mean(1) * torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
def test_batches_of_images(engine, strict, optimizer):
    settings = {"momentum": 0.9} if optimizer is torch.optim.SGD else {}
    torch.manual_seed(0)
    plain = Loop(Images(), lambda out: out.square().sum(), optimizer, clip=0.5, lr=0.01, **settings)
    ours = copy.deepcopy(plain)
    run = trainc.train_step(ours.step)
    for batch in [{"x": torch.randn(n, 3, 8, 8)} for n in (6, 4, 5, 2, 1, 7, 6)]:
        results = []
        for step in (plain.step, run):
            torch.manual_seed(1)
            results.append(step(**batch).detach())
        assert_same(results[1], results[0])
        assert_same(dict(ours.model.state_dict()), dict(plain.model.state_dict()), 1e-4)
    assert traces(run) == ["static", "symbolic", "sizes", "sizes", "static", "sizes"]  # 1 is no symbol


def rows_of(model, rows, **settings):
    """A train_step of `model` beside its loop in PyTorch, at several numbers of rows."""
    plain = Loop(model, lambda out: out.square().mean(), torch.optim.SGD, lr=0.01)
    ours = copy.deepcopy(plain)
    run = trainc.train_step(ours.step, **settings)
    for count in rows:
        x = torch.randn(count, 4)
        assert_same(run(x=x), plain.step(x=x).detach())
        assert_same(dict(ours.model.state_dict()), dict(plain.model.state_dict()))
    return run


def test_a_branch_on_a_size_is_a_guard(engine, strict):
    run = rows_of(Branches(), (3, 5, 7, 12, 30, 9, 11, 4))
    assert traces(run) == ["static", "symbolic", "sizes", "symbolic", "sizes", "sizes", "sizes", "sizes"]


def test_a_model_that_takes_sizes_for_constants_is_traced_for_each_and_says_so(engine, strict):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", messages.RecompileWarning)
        run = rows_of(Constant(), (3, 5, 7))
    assert traces(run) == ["static"] * 3
    told = [str(w.message) for w in said if issubclass(w.category, messages.RecompileWarning)]
    assert len(told) == 2 and all("every shape is traced on its own" in t and "for a constant" in t for t in told)


def test_a_scheduler_that_is_given_a_size_is_given_this_one(engine, strict):
    model = nn.Linear(4, 4)
    loop = Loop(model, lambda out: out.square().mean(), torch.optim.SGD, lr=0.01)
    schedule, given = torch.optim.lr_scheduler.LambdaLR(loop.optimizer, lambda _: 1.0), []
    schedule.step = given.append

    def step(x):
        loss = loop.step(input=x)
        schedule.step(x.shape[0])
        return loss

    run = trainc.train_step(step)
    for rows in (3, 5, 7, 3):
        run(torch.ones(rows, 4))
    assert given == [3, 5, 7, 3] and traces(run) == ["static"] * 3


def test_as_many_traces_as_are_allowed(strict, monkeypatch):
    monkeypatch.setattr(config, "max_signatures", 3)
    run = rows_of(Branches(), (3, 5, 7, 9, 4, 20))  # sizes are not counted
    with pytest.raises(trainc.UserError, match="more than 3 different signatures"):
        run(x=torch.ones(1, 4))
    run(x=torch.ones(6, 4))


def test_another_setting_is_said_without_a_warning(strict):
    loop = Loop(Branches(), lambda out: out.square().mean(), torch.optim.SGD, lr=0.01)
    run, x = trainc.train_step(loop.step), torch.ones(3, 4)
    run(x=x)
    loop.optimizer.param_groups[0]["weight_decay"] = 0.1
    run(x=x)
    assert records.of(run)[1].recompiled == "a setting of an optimizer that its update is made of changed"


def kernels(run, what):
    return [sum(report["compile"][what] for report in record.reports()) for record in records.of(run)]


def test_a_limit_is_met_for_each_size(core, strict):
    loop = of_case("gpt2")
    free = copy.deepcopy(loop)
    shapes = [(4, 32), (4, 24), (3, 40), (4, 29)]
    run, unlimited = trainc.train_step(loop.step, memory=0.97), trainc.train_step(free.step)
    for shape in shapes:
        results = []
        for step in (run, unlimited):
            torch.manual_seed(5)
            results.append(step(**tokens(*shape)))
        assert torch.equal(*results) and equal(loop, free)
    for limited, whole in zip(records.of(run), records.of(unlimited), strict=True):
        assert limited.memory().total <= 0.97 * whole.memory().total
    assert traces(run) == ["static", "symbolic", "sizes", "sizes"]
    assert kernels(run, "compiled_kernels") == kernels(run, "distinct_kernels")  # a limit is met with one shape's bytes


def test_a_size_that_cannot_meet_the_limit_is_refused_and_others_go_on(core, strict):
    limit = 4_500_000
    loop = of_case("gpt2")
    run = trainc.train_step(loop.step, memory=limit)
    run(**tokens(2, 12)), run(**tokens(2, 10))
    before = [t.clone() for t in state_of(loop)]
    for _ in range(2):
        with pytest.raises(trainc.UserError, match="cannot be met"):
            run(**tokens(16, 64))
    assert all(map(torch.equal, before, state_of(loop)))
    run(**tokens(3, 8))
    assert traces(run) == ["static", "symbolic", "sizes", "sizes"]


@pytest.mark.thorough
def test_kernels_are_shared_between_lengths(core, strict):
    loop = of_case("gpt2")
    run = trainc.train_step(loop.step)
    for shape in [*((4, length) for length in (52, 60, 55, 61, 50, 63, 57, 53, 62)), (3, 64)]:
        run(**tokens(*shape))
    compiled, of = kernels(run, "compiled_kernels"), kernels(run, "distinct_kernels")
    assert compiled[:2] == of[:2]
    assert sum(compiled[2:]) < 0.1 * sum(of[2:]), compiled
