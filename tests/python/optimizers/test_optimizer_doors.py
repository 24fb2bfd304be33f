"""Every variant of every optimizer whose update can be a part of a plan: train_step and fuse_step give what eager gives."""

import collections
import copy
import weakref

import pytest
import torch
from conftest import assert_same
from optimizer_variants import FLAGS
from torch import nn

import trainc
from trainc.base import records
from trainc.torch.optimizers import FORMULAS

DOORS = ["train_step", "fuse_step"]
IN_PLANS = [make for make in FLAGS if FORMULAS[make].elementwise]
STEPS = 8  # RAdam's rectification sets in at the sixth


class Training:
    """A small model, an optimizer with two groups and a scheduler; `step` takes a batch."""

    def __init__(self, make, flags, door, dtype):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(dtype)
        first, *others = self.model.parameters()
        groups = [{"params": [first]}, {"params": others, "lr": 0.03}]
        self.optimizer = make(groups, **{"lr": 0.02, **flags})
        if door in ("fuse_step", "compile"):
            trainc.compile(self.model, self.optimizer, fuse_step=door == "fuse_step")
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        self.step = trainc.train_step(self._step) if door == "train_step" else self._step

    def _step(self, x):
        loss = self.model(x).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss

    def train(self, x):
        self.step(x)
        self.scheduler.step()


def count_in_whole_numbers(training):
    """What a state of another program may hold."""
    for state in training.optimizer.state.values():
        state["step"] = state["step"].long()


def same(make, flags, door, dtype=torch.float64, change=None):
    """In double precision: an update divides by small numbers, and enlarges what the gradients differ by."""
    plain, ours = (Training(make, flags, its, dtype) for its in (None, door))
    bound = {torch.float32: 1e-4, torch.float64: 1e-12}[dtype]
    for number in range(STEPS):
        x = torch.randn(5, 3, dtype=dtype)
        for training in (plain, ours):
            training.train(x)
        mine, theirs = (copy.deepcopy(training.optimizer.state_dict()) for training in (ours, plain))
        assert mine["param_groups"] == theirs["param_groups"]
        assert_same(mine["state"], theirs["state"], bound)
        assert_same(ours.model.state_dict(), plain.model.state_dict(), bound)
        if number == 3:
            ours.optimizer.load_state_dict(theirs)
            plain.optimizer.load_state_dict(mine)
        if number == 5 and change:  # the states are as the last step left them
            for training in (plain, ours):
                change(training)
    return ours


@pytest.mark.sampled(4)
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("make", IN_PLANS, ids=lambda make: make.__name__)
def test_every_variant_within_a_plan(core, strict, make, door):
    for flags in FLAGS[make]:
        if flags.get("betas") == (0.3, 0.0):
            continue  # a step by an average over the last gradient alone: near 0 it enlarges a rounding without bound
        ours = same(make, flags, door)
        if door == "fuse_step":
            (record,) = records.of(ours.model)
            assert record.fused is not None and not record.backward, flags
        else:
            assert len(ours.step.compilations) == 1, flags


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("make", IN_PLANS, ids=lambda make: make.__name__)
def test_single_precision_within_a_plan(core, strict, make, door):
    same(make, FLAGS[make][1], door, torch.float32)


@pytest.mark.parametrize("door", [*DOORS, "compile"])
def test_numbers_of_a_type_that_eager_does_not_make(core, strict, door):
    for make in (torch.optim.AdamW, torch.optim.NAdam):
        same(make, {}, door, change=count_in_whole_numbers)


def one_of(training):
    """A parameter of the group that has three."""
    return training.model[2].weight


def replace_state(training, change):
    state = training.optimizer.state.get(one_of(training), {})
    for name in state:
        state[name] = change(state[name])


def replace_all_states(training):
    others = {p: {key: value + 1 for key, value in state.items()} for p, state in training.optimizer.state.items()}
    training.optimizer.state = collections.defaultdict(dict, others)


def replace_memory(training):
    for value in training.optimizer.state.get(one_of(training), {}).values():
        value.data = value.data * 2 + 1 if value.dim() else value.data.double() + 1


def count_in_narrow_numbers(training):
    """256 and 1 are 256 in bf16."""
    for p, state in training.optimizer.state.items():
        if "step" in state:
            state["step"].fill_(256.0)
            state["step"].data = state["step"].data.bfloat16() if p is one_of(training) else state["step"].data


CHANGES = {
    "numbers of another type": count_in_narrow_numbers,
    "a state's tensors": lambda training: replace_state(training, lambda value: value + 1),
    "its memory": replace_memory,
    "its numbers": lambda training: replace_state(training, lambda value: value if value.dim() else value.fill_(0.25)),
    "its numbers' types": lambda training: replace_state(training, lambda value: value if value.dim() else value.double()),
    "a state": lambda training: training.optimizer.state.update({one_of(training): {
        key: value + 1 for key, value in training.optimizer.state.get(one_of(training), {}).items()
    }}),
    "no state": lambda training: training.optimizer.state.pop(one_of(training), None),
    "all states": replace_all_states,
    "the parameter's memory": lambda training: setattr(one_of(training), "data", one_of(training).data * 2),
    "a setting": lambda training: training.optimizer.param_groups[1].update(lr=0.1, weight_decay=0.3),
    "a flag": lambda training: training.optimizer.param_groups[1].update(maximize=True),
}  # fmt: skip
CHANGED = [
    (torch.optim.AdamW, {}), (torch.optim.SGD, {"momentum": 0.5}), (torch.optim.SGD, {}), (torch.optim.NAdam, {}),
    (torch.optim.ASGD, {"t0": 1}),
]  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("make, flags", CHANGED, ids=["AdamW", "momentum", "SGD", "NAdam", "ASGD"])
@pytest.mark.parametrize("door", DOORS)
def test_a_plan_sees_what_changed_since_the_last_step(core, strict, make, flags, change, door):
    same(make, flags, door, change=CHANGES[change])


@pytest.mark.parametrize("door", [*DOORS, "compile"])
def test_a_state_that_was_replaced_is_let_go(core, strict, door):
    training = Training(torch.optim.AdamW, {}, door, torch.float32)
    for _ in range(3):
        training.train(torch.ones(5, 3))
    saved = copy.deepcopy(training.optimizer.state_dict())
    old = [weakref.ref(value) for state in training.optimizer.state.values() for value in state.values()]
    training.optimizer.load_state_dict(saved)
    assert not any(value() is not None for value in old)
    training.train(torch.ones(5, 3))


@pytest.mark.parametrize("make", IN_PLANS, ids=lambda make: make.__name__)
def test_the_interpreter_updates_by_the_same_formulas(engine, strict, make):
    same(make, FLAGS[make][1], "train_step")


@pytest.mark.parametrize("method", ["step", "zero_grad"])
@pytest.mark.parametrize("door", ["compile", "fuse_step"])
def test_methods_that_the_program_puts_in_the_class_later_run(core, door, method, monkeypatch):
    found = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        if compiled:
            trainc.compile(model, optimizer, fuse_step=door == "fuse_step")
        plain = getattr(torch.optim.SGD, method)

        def own(self, *args, plain=plain):
            for p in self.param_groups[0]["params"] if method == "step" else ():
                p.grad = p.grad + 1
            result = plain(self, *args)
            for p in self.param_groups[0]["params"]:
                p.data.mul_(0.5)
            return result

        for turn in range(4):
            with monkeypatch.context() as patch:
                if turn % 2:
                    patch.setattr(torch.optim.SGD, method, own)
                model(torch.ones(1, 3)).square().sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            found.append([p.detach().clone() for p in model.parameters()])
    for mine, eagers in zip(found[4:], found[:4], strict=True):
        assert_same(dict(enumerate(mine)), dict(enumerate(eagers)))
