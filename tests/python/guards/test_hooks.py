"""A module's hooks are code of its call: traced and watched as forward is, run where a trace of forward does not have them, and
noticed when they come and go. Each program is compared with eager over some steps."""

import copy
import random

import numpy as np
import pytest
import torch
from conftest import assert_same, gradients
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

import trainc
from trainc.base import messages, records

SCALE = [1.0]
SEEN = []


class Net(nn.Module):
    """`route`: what of its forward decides how it is compiled."""

    def __init__(self, route):
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 4)
        self.route, self.log = route, []

    def forward(self, x, scale=1.0):
        if self.route == "split" and self.a.weight.sum().item() > 1e9:
            return x
        if self.route == "list":
            self.log.append(len(self.log))
        return self.b(torch.relu(self.a(x))) * scale


class Counting:
    def __init__(self):
        self.calls = 0

    def __call__(self, module, args, result):
        self.calls += 1
        return result * self.calls

    def method(self, module, args, result):
        return result * SCALE[0]


def average(module, args):
    module.average.mul_(0.9).add_(args[0].detach().mean(0), alpha=0.1)


def averaged(model):
    model.b.register_buffer("average", torch.zeros(8))
    model.b.register_forward_pre_hook(average)


HOOKS = {
    "reads a global": lambda m: m.b.register_forward_hook(lambda module, args, result: result * SCALE[0]),
    "reads a global before": lambda m: m.b.register_forward_pre_hook(lambda module, args: (args[0] * SCALE[0],)),
    "of the model itself": lambda m: m.register_forward_hook(lambda module, args, result: result * SCALE[0]),
    "of the model itself, before": lambda m: m.register_forward_pre_hook(lambda module, args: args[0] * SCALE[0]),
    "is given keywords": lambda m: m.register_forward_pre_hook(
        lambda module, args, kwargs: (args, {**kwargs, "scale": SCALE[0]}), with_kwargs=True
    ),
    "a method": lambda m: m.b.register_forward_hook(Counting().method),
    "draws torch's numbers": lambda m: m.b.register_forward_pre_hook(
        lambda module, args: torch.dropout(args[0], 0.5, module.training)
    ),
    "writes a buffer": averaged,
    "draws NumPy's numbers": lambda m: m.b.register_forward_hook(lambda module, args, result: result * float(np.random.rand())),
    "draws Python's numbers": lambda m: m.b.register_forward_hook(lambda module, args, result: result * random.random()),
    "seeds": lambda m: m.b.register_forward_pre_hook(lambda module, args: (torch.manual_seed(3), None)[1]),
    "counts": lambda m: m.b.register_forward_hook(Counting()),
    "appends": lambda m: m.b.register_forward_hook(lambda module, args, result: SEEN.append(result.detach().clone())),
    "appends a value": lambda m: m.b.register_forward_hook(lambda module, args, result: SEEN.append(result.sum().item())),
    "sets an attribute": lambda m: m.b.register_forward_hook(lambda module, args, result: setattr(module, "last", 2 * result)),
    "after an error": lambda m: m.b.register_forward_hook(lambda module, args, result: SEEN.append(1), always_call=True),
    "of the backward": lambda m: m.b.register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * SCALE[0],)),
    "of the backward, not a full one": lambda m: m.b.register_backward_hook(
        lambda module, inputs, outputs: (inputs[0] * SCALE[0], *inputs[1:])
    ),
    "of the model's backward": lambda m: m.register_full_backward_pre_hook(lambda module, outputs: (outputs[0] * SCALE[0],)),
    "of the backward, appends": lambda m: m.b.register_full_backward_hook(lambda module, inputs, outputs: SEEN.append(1)),
    "of the backward, draws": lambda m: m.b.register_full_backward_hook(
        lambda module, inputs, outputs: (inputs[0] * float(np.random.rand()),)
    ),
}  # fmt: skip
TRACED = [name for name in HOOKS if list(HOOKS).index(name) < list(HOOKS).index("draws NumPy's numbers")]


def trained(model, steps=7, at=None, hook=None):
    """What a loop gives in which `hook` is registered before step `at`, and what it leaves behind."""
    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    SEEN.clear()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    found = []
    for i in range(steps):
        SCALE[0] = 1.0 + 0.1 * (i // 2)
        if i == at:
            HOOKS[hook](model)
        loss = model(torch.randn(3, 4)).square().mean()
        SCALE[0] += 0.05  # a backward hook finds another value than forward would
        loss.backward()
        found += [loss.detach(), *gradients(model).values()]
        optimizer.step()
        optimizer.zero_grad()
    states = random.getstate(), np.random.get_state()[1].tolist(), np.random.get_state()[2], torch.get_rng_state().tolist()
    tensors = [*model.buffers(), getattr(model.b, "last", torch.zeros(1)).detach()]
    return [*found, *[torch.as_tensor(each) for each in SEEN], *tensors], len(SEEN), model.log, states


def same(got, wanted):
    assert got[1:] == wanted[1:]
    for a, b in zip(got[0], wanted[0], strict=True):
        assert_same(a, b)


@pytest.mark.sampled(4)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("route, at", [("compiled", 0), ("split", 4)])
@pytest.mark.parametrize("hook", HOOKS)
def test_hooks_do_what_they_do_in_eager(core, hook, route, at):
    """`at`: from the first call on, or when there is a way that serves the model without the hook."""
    torch.manual_seed(0)
    plain = Net(route)
    ours = trainc.compile(copy.deepcopy(plain))
    same(trained(ours, at=at, hook=hook), trained(plain, at=at, hook=hook))


@pytest.mark.parametrize("hook", TRACED)
def test_hooks_around_forward_are_traced(engine, strict, hook):
    torch.manual_seed(0)
    plain = Net("compiled")
    ours = trainc.compile(copy.deepcopy(plain))
    same(trained(ours, at=0, hook=hook), trained(plain, at=0, hook=hook))
    assert {record.route for record in records.of(ours)} == {"compiled"}


def test_a_hook_that_is_registered_anew_at_each_call_is_one(engine, strict):
    """What it holds decides, not which object it is."""
    torch.manual_seed(0)
    plain = Net("compiled")
    ours = trainc.compile(copy.deepcopy(plain))
    for i in range(6):
        scale = 2.0 if i < 4 else 3
        x = torch.randn(3, 4)
        results = []
        for model in (plain, ours):
            handle = model.b.register_forward_hook(lambda module, args, result, scale=scale: result * scale)
            results.append(model(x))
            handle.remove()
        assert_same(results[1], results[0])
    assert len(records.of(ours)) == 2
    assert_same(ours(x), plain(x))
    assert len(records.of(ours)) == 3


ELSEWHERE = [nn.Tanh()]


@pytest.mark.filterwarnings("ignore")
def test_hooks_of_a_module_that_is_no_part_of_the_model(core):
    class Outer(nn.Linear):
        def forward(self, x):
            return ELSEWHERE[0](super().forward(x))

    torch.manual_seed(0)
    plain = Outer(4, 4)
    ours = trainc.compile(copy.deepcopy(plain))
    x = torch.randn(3, 4)

    def compare():
        results = []
        for model in (ours, plain):
            model.zero_grad()
            results.append(model(x))
            results[-1].sum().backward()
        assert_same(results[0], results[1])
        assert_same(gradients(ours), gradients(plain))

    compare()
    for name in ("reads a global", "of the backward", "of the backward, not a full one"):
        SCALE[0] = 2.0
        ELSEWHERE[0] = nn.Tanh()  # one has hooks of one kind
        compare()
        holder = nn.Module()
        holder.b = ELSEWHERE[0]
        handle = HOOKS[name](holder)
        compare()
        SCALE[0] = 3.0
        compare()
        handle.remove()
        compare()


def test_the_order_of_hooks(engine, strict):
    torch.manual_seed(0)
    plain = Net("compiled")
    ours = trainc.compile(copy.deepcopy(plain))
    x = torch.randn(3, 4)
    for prepend in (False, True):
        for model in (plain, ours):
            model.b.register_forward_hook(lambda module, args, result: result * 2, prepend=prepend)
            model.b.register_forward_hook(lambda module, args, result: result + 1, prepend=prepend)
        assert_same(ours(x), plain(x))


def test_an_error_calls_the_hooks_that_are_called_after_one(core):
    model = trainc.compile(Net("compiled"))
    seen = []
    model.b.register_forward_hook(lambda module, args, result: seen.append(1), always_call=True)
    with pytest.warns(messages.TraincWarning, match="is called after an error"):
        model(torch.randn(3, 4))
    with pytest.raises(TypeError):
        model.b(None)
    with pytest.raises(RuntimeError):
        model.b(torch.randn(3, 4))
    assert len(seen) == 3


@pytest.mark.parametrize("route", ["compiled", "list"])
def test_hooks_on_all_modules(core, route):
    """They run for the program's modules alone: as often as in eager, and on nothing of trainc's."""
    plain = Net(route)
    ours = trainc.compile(copy.deepcopy(plain))
    x, seen = torch.randn(3, 4), []
    ours(x), ours(x)
    ours(x), plain(x)
    handle = register_module_forward_hook(lambda module, args, result: seen.append(type(module)) or result * 2)
    try:
        with pytest.warns(messages.TraincWarning, match="a hook is registered on all modules"):
            got = ours(x)
        wanted = plain(x)
    finally:
        handle.remove()
    assert_same(got, wanted)
    assert seen == [nn.Linear, nn.Linear, Net] * 2


def test_a_step_has_its_modules_hooks(engine):
    def run(compiled):
        torch.manual_seed(0)
        SCALE[0] = 2.0
        model = Net("compiled")
        HOOKS["reads a global"](model)
        optimizer = torch.optim.SGD(model.parameters(), 0.05)

        def step(x):
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        step = trainc.train_step(step) if compiled else step
        losses = [step(torch.randn(3, 4)).item() for _ in range(3)]
        SCALE[0] = 3.0
        losses.append(step(torch.randn(3, 4)).item())
        HOOKS["of the model itself"](model)
        losses += [step(torch.randn(3, 4)).item() for _ in range(2)]
        HOOKS["of the backward"](model)
        return losses, step

    wanted, _ = run(False)
    losses, step = run(True)
    assert losses == pytest.approx(wanted, rel=1e-5)
    with pytest.raises(trainc.UserError, match="`model.b` has backward hooks"):
        step(torch.randn(3, 4))
