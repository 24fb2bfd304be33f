"""trainc.train_step: the whole step as one plan gives what the loop in PyTorch gives, and refuses what it cannot capture."""

from __future__ import annotations

import copy
import sys

import models
import pytest
import torch
from conftest import assert_same
from torch import nn
from torch._functorch._aot_autograd import logging_utils

import trainc
from trainc.base import records

OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2, betas=(0.8, 0.95)),
    "adamw amsgrad": lambda p: torch.optim.AdamW(p, lr=1e-2, amsgrad=True, maximize=True, weight_decay=0.0),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-2, weight_decay=0.1),
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-1),
    "sgd nesterov": lambda p: torch.optim.SGD(p, lr=1e-1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "sgd dampened": lambda p: torch.optim.SGD(p, lr=1e-1, momentum=0.9, dampening=0.3),
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(7, 33, bias=False), nn.BatchNorm1d(33)
        self.second, self.third = nn.Linear(33, 33), nn.Linear(33, 5)

    def forward(self, x):
        x = nn.functional.relu(self.norm(self.first(x)), inplace=True)
        return self.third(nn.functional.dropout(torch.tanh(self.second(x)), 0.2, self.training))


def batches(count=5):
    generator = torch.Generator().manual_seed(3)
    return [(torch.randn(6, 7, generator=generator), torch.randint(0, 5, (6,), generator=generator)) for _ in range(count)]


def train(optimizer, compiled, clip=None, scheduler=False, model=None, steps=5):
    torch.manual_seed(0)
    model = Net() if model is None else model
    optimizer = OPTIMIZERS[optimizer](model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)

    def step(x, y):
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        norm = None if clip is None else nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        if scheduler:
            schedule.step()
        optimizer.zero_grad()
        return {"loss": loss, "norm": norm}

    run = trainc.train_step(step) if compiled else step
    results = []
    for x, y in batches(steps):
        result = run(x, y)
        results.append(result["loss"].item())
        if clip is not None:
            results.append(result["norm"].item())
    assert all(p.grad is None for p in model.parameters())
    return results, model, optimizer, run


@pytest.mark.sampled(3)
@pytest.mark.parametrize("clip", [None, 0.1, 100.0], ids=["unclipped", "clipped", "clip idle"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_trains_as_the_loop_does(engine, strict, optimizer, clip):
    wanted, model, plain, _ = train(optimizer, compiled=False, clip=clip)
    state = torch.get_rng_state()
    got, compiled_model, compiled, _ = train(optimizer, compiled=True, clip=clip)
    assert torch.equal(torch.get_rng_state(), state)  # the same masks, in the same order
    assert got == pytest.approx(wanted, rel=2e-5)
    assert_same(dict(compiled_model.state_dict()), dict(model.state_dict()), 2e-4)
    a, b = compiled.state_dict(), plain.state_dict()
    assert a["param_groups"] == b["param_groups"] and a["state"].keys() == b["state"].keys()
    for key in a["state"]:
        assert_same(a["state"][key], b["state"][key], 1e-4)


def test_gpt2_trains_as_the_loop_does(strict):
    def run(compiled):
        torch.manual_seed(1)
        case = models.gpt2()
        optimizer = torch.optim.AdamW(case.model.parameters(), lr=1e-3)

        def step(ids):
            loss = case.model(input_ids=ids, labels=ids).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            return loss

        step = trainc.train_step(step) if compiled else step
        return [step(batch["input_ids"]).item() for batch in case.batches * 2]

    assert run(True) == pytest.approx(run(False), rel=1e-5)


def test_a_backward_is_traced_on_the_threads_own(engine, strict, monkeypatch):
    """On a GPU autograd would run it on a thread of its own, where nothing of the trace is in place."""
    threaded = []

    grad = torch.autograd.grad

    def watched(*args, **kwargs):
        threaded.append(torch._C._is_multithreading_enabled())
        return grad(*args, **kwargs)

    monkeypatch.setattr(torch.autograd, "grad", watched)
    model = nn.Linear(3, 2)

    def step(x):
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainc.train_step(step)(torch.ones(4, 3))
    assert threaded and not any(threaded)
    assert torch._C._is_multithreading_enabled()


def test_a_scheduler_never_recompiles(strict):
    wanted = train("adamw", compiled=False, scheduler=True)
    got = train("adamw", compiled=True, scheduler=True)
    assert got[0] == pytest.approx(wanted[0], rel=2e-5)
    assert got[2].param_groups[0]["lr"] == wanted[2].param_groups[0]["lr"] == 1e-2 / 4
    assert len(records.of(got[3])) == 1


def test_state_that_is_loaded_is_continued(engine, strict):
    _, model, optimizer, _ = train("adamw", compiled=False)
    kept = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    results = []
    for compiled in (False, True):
        torch.manual_seed(4)
        net = Net()
        again = OPTIMIZERS["adamw"](net.parameters())

        def step(x, y, net=net, again=again):
            again.zero_grad()
            loss = nn.functional.cross_entropy(net(x), y)
            loss.backward()
            again.step()
            return loss

        run = trainc.train_step(step) if compiled else step
        run(*batches(1)[0])
        net.load_state_dict(kept[0])
        again.load_state_dict(copy.deepcopy(kept[1]))  # torch keeps the tensors that it is given
        torch.manual_seed(5)
        results.append([run(x, y).item() for x, y in batches()])
        assert all(s["step"].item() == 10 for s in again.state.values())
    assert results[1] == pytest.approx(results[0], rel=2e-5)


def test_gradients_of_others_stay(engine, strict):
    """A parameter that no optimizer updates accumulates its gradient, as in the loop."""
    gradients = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = Net()
        optimizer = torch.optim.SGD([*model.second.parameters(), *model.third.parameters()], lr=0.1)

        def step(x, y, model=model, optimizer=optimizer):
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()

        run = trainc.train_step(step) if compiled else step
        for x, y in batches(3):
            assert run(x, y) is None
        gradients.append({n: None if p.grad is None else p.grad for n, p in model.named_parameters()})
    assert_same(gradients[1], gradients[0], 1e-5)


def test_gradients_never_all_exist():
    model = nn.Sequential(*[nn.Linear(96, 96, bias=False) for _ in range(12)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    run = trainc.train_step(step)
    run(torch.randn(3, 96))
    (report,) = trainc.explain(run).reports[0]
    one = 96 * 96 * 4
    assert report["saved_bytes"] == 0 and report["temp_bytes"] < 2 * one


def test_new_shapes_and_settings_compile_anew(strict):
    torch.manual_seed(0)
    model = Net().eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x, y):
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    run = trainc.train_step(step)
    x, y = batches(1)[0]
    run(x, y), run(x, y)
    assert len(records.of(run)) == 1
    run(x[:4], y[:4])
    assert len(records.of(run)) == 2
    optimizer.param_groups[0]["weight_decay"] = 0.1
    run(x, y)
    assert len(records.of(run)) == 3


# ---- what is refused ----------------------------------------------------------------------------------------------------


def setup():
    torch.manual_seed(0)
    model = Net()
    return model, torch.optim.AdamW(model.parameters())


def refused(build, words):
    model, optimizer = setup()
    before = copy.deepcopy(model.state_dict())
    state = torch.get_rng_state()
    step = trainc.train_step(build(model, optimizer))
    with pytest.raises(trainc.UserError, match=words):
        step(*batches(1)[0])
    assert_same(dict(model.state_dict()), dict(before), 0)
    assert torch.equal(torch.get_rng_state(), state) and not optimizer.state


def body(middle=lambda loss: None, after=lambda model, x: None, zero=True, twice=False):
    def build(model, optimizer):
        def step(x, y):
            loss = nn.functional.cross_entropy(model(x), y)
            middle(loss)
            loss.backward()
            optimizer.step()
            if twice:
                optimizer.step()
            if zero:
                optimizer.zero_grad()
            after(model, x)
            return loss

        return step

    return build


@pytest.mark.parametrize(
    "build, words",
    [
        (body(lambda loss: loss.item()), r"test_step.py:\d+: reads the value of a tensor"),
        (body(lambda loss: 1 if loss > 3 else 2), r"test_step.py:\d+: reads the value of a tensor"),
        (body(lambda loss: print(loss)), r"test_step.py:\d+: print\(\) would run once"),
        (body(after=lambda model, x: model(x)), r"test_step.py:\d+: the step uses a parameter again after optimizer.step"),
        (body(zero=False), "no optimizer.zero_grad"),
        (body(twice=True), r"test_step.py:\d+: a second step of one optimizer"),
    ],
    ids=["item", "branch", "print", "uses after", "no zero_grad", "second step"],
)
@pytest.mark.parametrize("failed_before", [False, True], ids=["", "after a backward that failed"])
def test_what_cannot_be_captured_names_its_line(build, words, failed_before, monkeypatch):
    monkeypatch.setattr(logging_utils, "callback_set", failed_before)  # what such a trace leaves behind
    refused(build, words)


def test_a_changed_variable_is_refused_and_put_back():
    losses = []

    def build(model, optimizer):
        def step(x, y):
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss)

        return step

    refused(build, "the step changes `losses`")
    assert losses == []


PROGRAM = """
import torch, trainc

def made(talks=False):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        loss = halved(model(x).square().sum())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if talks:
            print("done")
        return loss

    return step

def halved(x):
    return x / 2
"""


@pytest.mark.parametrize("file", ["<stdin>", "<string>", "<python-input-3>"])
def test_a_program_without_a_file(core, strict, file):
    """What is typed at a prompt, piped into Python, or given to it with -c."""
    program = {"__name__": "__main__"}
    exec(compile(PROGRAM, file, "exec"), program)
    plain, ours = program["made"](), trainc.train_step(program["made"]())
    for _ in range(2):
        assert_same(ours(torch.ones(4, 3)), plain(torch.ones(4, 3)).detach())
    with pytest.raises(trainc.UserError, match=r"print\(\) would run once"):
        trainc.train_step(program["made"](talks=True))(torch.ones(4, 3))
    assert file == "<string>" or f"{file}:10 (aten" in str(trainc.explain(ours))


def test_what_a_step_must_reach():
    model, optimizer = setup()
    with pytest.raises(trainc.UserError, match="reaches no model"):
        trainc.train_step(lambda x: x.sum().backward())
    with pytest.raises(trainc.UserError, match="reaches no optimizer"):
        trainc.train_step(lambda x: model(x).sum().backward())
    other = torch.optim.Adafactor(model.parameters())
    with pytest.raises(trainc.UserError, match="AdamW, .*, not Adafactor"):
        trainc.train_step(lambda x: (model(x), other.step()))


def test_gradients_from_outside_are_refused():
    model, optimizer = setup()
    step = trainc.train_step(body()(model, optimizer))
    x, y = batches(1)[0]
    model(x).sum().backward()
    with pytest.raises(trainc.UserError, match="gradients from outside"):
        step(x, y)


def test_a_parameter_that_shares_memory_is_refused():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    model.register_buffer("view", model[1].weight.data.view(-1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @trainc.train_step
    def step(x):
        loss = (model(x).sum(1) * model.view[:4]).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    with pytest.raises(trainc.UserError, match=r"shape \[3, 4\] shares its memory"):
        step(torch.randn(4, 4))


class Own(LookupError):
    pass


@pytest.mark.parametrize("raised", [Own("mine"), trainc.UserError("mine"), KeyError("mine")], ids=lambda e: type(e).__name__)
def test_the_programs_own_exception_is_itself(engine, raised):
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(x):
        loss = model(x).sum()
        if len(x) == 3:
            raise raised
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    compiled, before = trainc.train_step(step), model.weight.detach().clone()
    for _ in range(2):
        with pytest.raises(type(raised), match="mine") as caught:
            compiled(torch.randn(3, 4))
        assert caught.value is raised and torch.equal(model.weight, before)
    compiled(torch.randn(2, 4))
    assert not torch.equal(model.weight, before)


@pytest.mark.parametrize("raises", ["gather", "index", "cross_entropy"])
def test_the_watch_of_a_trace_ends_with_it(core, strict, raises):
    """A body with handlers of its own, whose backward may raise for its values: a double DQN's. conftest.py looks after each test
    whether the watch is left."""
    model, target = nn.Linear(6, 3), nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)

    def step(x, action):
        with torch.no_grad():
            wanted = target(x).amax(1)
        values = model(x)
        if raises == "cross_entropy":
            loss = nn.functional.cross_entropy(values, action) * wanted.mean()
        else:
            taken = values.gather(1, action[:, None])[:, 0] if raises == "gather" else values[torch.arange(5), action]
            loss = nn.functional.smooth_l1_loss(taken, wanted)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    compiled = trainc.train_step(step)
    for _ in range(2):
        compiled(torch.randn(5, 6), torch.randint(0, 3, (5,)))
        assert sys.getprofile() is None
        torch.manual_seed(0)  # a watch would refuse it
