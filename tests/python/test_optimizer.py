"""The optimizer's step: torch's results, torch's state, and everything that loops do to an optimizer."""

import collections
import copy
import functools
import warnings
import weakref

import pytest
import torch
from conftest import assert_same
from torch import nn
from torch.optim import SGD, Adam, AdamW
from torch.optim.optimizer import register_optimizer_step_post_hook

import trainc
from trainc import records

VARIANTS = [
    (AdamW, {}),
    (AdamW, {"amsgrad": True, "maximize": True, "foreach": True}),
    (AdamW, {"betas": (0.4, 0.9), "eps": 1e-3}),
    (Adam, {"weight_decay": 0.1}),
    (AdamW, {"fused": True}),
    (AdamW, {"fused": True, "amsgrad": True, "betas": (0.4, 0.9)}),
    (Adam, {"fused": True, "weight_decay": 0.1, "maximize": True}),
    (SGD, {"fused": True, "lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    (Adam, {"foreach": True, "lr": torch.tensor(0.01), "capturable": False}),
    (SGD, {"lr": 0.1}),
    (SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}),
    (SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01, "maximize": True}),
    (torch.optim.RMSprop, {}),
]


def pair(make, flags, dtype=torch.float32):
    plain = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3), nn.Linear(3, 3)).to(dtype)
    plain[2].requires_grad_(False)  # never has a gradient
    ours = copy.deepcopy(plain)
    optimizers = [make(m.parameters(), **flags) for m in (plain, ours)]
    trainc.compile(ours, optimizers[1])
    return (plain, optimizers[0]), (ours, optimizers[1])


def step(model, optimizer, x, skip=False):
    optimizer.zero_grad()
    loss = (model[0](x) if skip else model(x)).square().mean()
    loss.backward()
    optimizer.step()


@pytest.mark.parametrize(("make", "flags"), VARIANTS)
def test_steps_as_torch_does(engine, strict, make, flags):
    if isinstance(flags.get("lr"), torch.Tensor):
        flags = {key: value for key, value in flags.items() if key != "foreach"}
    plain, ours = pair(make, flags)
    for i in range(4):
        x = torch.randn(5, 4)
        for model, optimizer in (plain, ours):
            step(model, optimizer, x, skip=i == 1)  # a parameter without a gradient in between: its step falls behind
    assert_same(ours[0].state_dict(), plain[0].state_dict(), 2e-6)
    theirs, mine = plain[1].state_dict(), ours[1].state_dict()
    assert theirs["param_groups"] == mine["param_groups"]
    assert_same(mine["state"], theirs["state"], 2e-6)


FLAGS = {
    SGD: [
        {}, {"momentum": 0.9}, {"momentum": 0.9, "dampening": 0.3}, {"momentum": 0.9, "nesterov": True},
        {"momentum": 0.9, "weight_decay": 0.1}, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1, "maximize": True},
        {"weight_decay": 0.1, "maximize": True}, {"momentum": 0.9, "foreach": True}, {"momentum": 0.9, "fused": True},
    ],
    Adam: [
        {}, {"amsgrad": True}, {"weight_decay": 0.1}, {"maximize": True}, {"betas": (0.0, 0.5)}, {"betas": (0.3, 0.0)},
        {"amsgrad": True, "weight_decay": 0.1, "maximize": True, "foreach": True}, {"fused": True, "amsgrad": True}, {"eps": 1.0},
    ],
}  # fmt: skip
FLAGS[AdamW] = [*FLAGS[Adam], {"weight_decay": 0.0}, {"weight_decay": 0.5, "lr": 0.5}]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("make", FLAGS, ids=lambda make: make.__name__)
def test_every_variant_in_every_type(engine, make, dtype):
    """Parameters, every tensor of the state, and what must not be written: after the first, the second and the third step."""
    for flags in FLAGS[make]:
        if make is SGD and flags.get("fused") and dtype.itemsize == 2:
            continue  # torch's own kernel (2.13) gives other momenta for the last elements each time
        torch.manual_seed(0)
        plain = nn.ParameterList([torch.randn(shape).to(dtype) for shape in [(), (1,), (3,), (5, 7), (0,), (2000,)]])
        ours = copy.deepcopy(plain)
        optimizers = [make(parameters.parameters(), **{"lr": 0.1, **flags}) for parameters in (plain, ours)]
        trainc.compile(ours, optimizers[1])
        for number in (1, 2, 3):
            for i, (theirs, p) in enumerate(zip(plain, ours, strict=True)):
                theirs.grad = None if number == 2 and i == 3 else torch.randn(theirs.shape).to(dtype)
                p.grad = None if theirs.grad is None else theirs.grad.clone()
            for optimizer in optimizers:
                optimizer.step()
            bound = {torch.float32: 2e-6, torch.float64: 4e-15}.get(dtype, 0.0)
            what = f"{flags}, {dtype}, step {number}"
            for theirs, p in zip(plain, ours, strict=True):
                mine, state = optimizers[1].state[p], optimizers[0].state[theirs]
                assert mine.keys() == state.keys(), what
                pairs = {key: (mine[key], value) for key, value in state.items()}
                for key, (got, value) in {**pairs, "parameter": (p.detach(), theirs.detach())}.items():
                    told = functools.partial("{}, {}: {}".format, key, what)
                    torch.testing.assert_close(got, value, rtol=bound, atol=bound, equal_nan=True, msg=told)
                assert p.grad is None if theirs.grad is None else torch.equal(p.grad, theirs.grad), what


def test_state_goes_to_and_from_a_plain_optimizer(engine, strict):
    (plain, theirs), (ours, mine) = pair(AdamW, {})
    for model, optimizer in ((plain, theirs), (ours, mine)):
        step(model, optimizer, torch.ones(2, 4))
    mine.load_state_dict(copy.deepcopy(theirs.state_dict()))
    theirs.load_state_dict(copy.deepcopy(mine.state_dict()))
    for model, optimizer in ((plain, theirs), (ours, mine)):
        step(model, optimizer, torch.ones(2, 4))
    assert_same(ours.state_dict(), plain.state_dict(), 2e-6)
    assert "step" not in copy.deepcopy(mine).__dict__  # a copy is a plain optimizer


@pytest.mark.parametrize("before", [True, False])
def test_schedulers_never_recompile_and_never_warn(engine, strict, before):
    (plain, theirs), (ours, mine) = pair(AdamW, {"lr": 0.1})
    plain2 = copy.deepcopy(ours)
    mine2 = AdamW(plain2.parameters(), lr=0.1)
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(theirs, 0.5)]
    if before:
        schedulers.append(torch.optim.lr_scheduler.ExponentialLR(mine2, 0.5))
        trainc.compile(plain2, mine2)
    else:
        trainc.compile(plain2, mine2)
        schedulers.append(torch.optim.lr_scheduler.ExponentialLR(mine2, 0.5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            for (model, optimizer), scheduler in zip(((plain, theirs), (plain2, mine2)), schedulers, strict=True):
                step(model, optimizer, torch.ones(2, 4))
                scheduler.step()
    assert_same(plain2.state_dict(), plain.state_dict(), 2e-6)
    assert len(records.of(mine2)) == 1


def test_closures_step_hooks_and_new_groups(engine, strict):
    plain, ours = pair(SGD, {"lr": 0.1, "momentum": 0.9})
    calls = []
    for model, optimizer in (plain, ours):
        optimizer.register_step_post_hook(lambda *_: calls.append(1))

        def closure(model=model, optimizer=optimizer):
            optimizer.zero_grad()
            loss = model(torch.ones(2, 4)).square().mean()
            loss.backward()
            return loss

        losses = [optimizer.step(closure) for _ in range(2)]
        assert losses[1] < losses[0]
        extra = nn.Parameter(torch.ones(3))
        extra.grad = torch.ones(3)
        optimizer.add_param_group({"params": [extra], "lr": 0.5})
        optimizer.step()
        assert extra[0] == 0.5
    assert len(calls) == 6
    assert_same(ours[0].state_dict(), plain[0].state_dict(), 2e-6)


@pytest.mark.parametrize("chosen", [slice(None), slice(1, 2)], ids=["some", "all"])
def test_parameters_that_the_kernel_cannot_walk(engine, strict, chosen):
    for make, flags in ((AdamW, {}), (SGD, {"lr": 0.1, "momentum": 0.9})):
        results = []
        for compiled in (False, True):
            torch.manual_seed(0)
            params = [nn.Parameter(t) for t in (torch.randn(4, 3).t(), torch.randn(3).bfloat16(), torch.randn(2), torch.randn(0))]
            params = params[chosen]
            optimizer = make(params, **flags)
            if compiled:
                trainc.compile(nn.Linear(1, 1), optimizer)
            for _ in range(3):
                for p in params:
                    p.grad = torch.ones(p.shape, dtype=p.dtype)
                optimizer.step()
            results.append(params)
        for got, wanted in zip(results[1], results[0], strict=True):
            assert_same(got.data, wanted.data, 2e-6)


def test_double_precision(engine, strict):
    plain, ours = pair(AdamW, {}, torch.float64)
    for model, optimizer in (plain, ours):
        for _ in range(3):
            step(model, optimizer, torch.ones(2, 4, dtype=torch.float64))
    assert_same(ours[0].state_dict(), plain[0].state_dict(), 1e-14)


def test_grad_scaler_skips_steps_with_inf(engine, strict):
    plain, ours = pair(AdamW, {})
    for model, optimizer in (plain, ours):
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        for value in (1.0, float("inf"), 2.0):
            optimizer.zero_grad()
            scaler.scale(model(torch.full((2, 4), value)).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
    assert_same(ours[0].state_dict(), plain[0].state_dict(), 2e-6)


def test_autograd_sees_that_the_weights_changed(engine, strict):
    _, (model, optimizer) = pair(AdamW, {})
    loss = model(torch.ones(2, 4)).square().mean()
    model(torch.ones(2, 4)).square().mean().backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_other_optimizers_stay_as_they_are(engine):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adagrad(model.parameters())
    trainc.compile(model, optimizer)
    assert "step" not in optimizer.__dict__
    assert records.of(optimizer)[0].route == "eager"


def test_fused_steps_are_compiled_and_counted(engine, strict):
    _, (model, optimizer) = pair(AdamW, {"fused": True})
    for _ in range(2):
        step(model, optimizer, torch.ones(2, 4))
    (record,) = records.of(optimizer)
    assert record.optimizer is not None and optimizer.state[model[0].weight]["step"].dtype == torch.float32
    work = trainc.explain(optimizer).totals
    if engine == "core":
        count = sum(p.numel() for p in model.parameters() if p.requires_grad)
        assert work.bytes == work.compiled_bytes == count * 4 * (4 + 3)  # reads four tensors, writes three, a step
        assert 10 * count <= work.flops <= 20 * count


def _replace_a_parameter(model, optimizer):
    gradient, model[0].weight = model[0].weight.grad, nn.Parameter(model[0].weight.detach() / 2)
    optimizer.param_groups[0]["params"][0] = model[0].weight
    model[0].weight.grad = gradient


def _replace_all_states(model, optimizer):
    others = {p: {key: value + 1 for key, value in state.items()} for p, state in optimizer.state.items()}
    optimizer.state = collections.defaultdict(dict, others)


def _move_a_gradient(model, optimizer):
    model[1].bias.grad, model[2].bias.grad = None, torch.ones(3)


def _load_other_state(model, optimizer):
    saved = copy.deepcopy(optimizer.state_dict())
    saved["state"] = {i: {key: value + 1 for key, value in state.items()} for i, state in saved["state"].items()}
    optimizer.load_state_dict(saved)


def _set_state(name, value):
    return lambda model, optimizer: optimizer.state[model[0].weight].__setitem__(name, value.clone())


CHANGES = {
    "nothing": lambda model, optimizer: None,
    "a moment": _set_state("exp_avg", torch.ones(8, 4)),
    "a step's tensor": _set_state("step", torch.tensor(7.0)),
    "a step's number": lambda model, optimizer: optimizer.state[model[0].weight]["step"].fill_(9),
    "a state": lambda model, optimizer: optimizer.state.__setitem__(
        model[0].weight, {key: value + 1 for key, value in optimizer.state[model[0].weight].items()}
    ),
    "all states": _replace_all_states,
    "all states, loaded": _load_other_state,
    "a parameter": _replace_a_parameter,
    "a parameter's memory": lambda model, optimizer: setattr(model[0].weight, "data", model[0].weight.data * 2),
    "a gradient less": lambda model, optimizer: setattr(model[0].weight, "grad", None),
    "a gradient more": lambda model, optimizer: setattr(model[2].weight, "grad", torch.ones(3, 3)),
    "another gradient": _move_a_gradient,
    "a gradient's order": lambda model, optimizer: setattr(model[0].weight, "grad", model[0].weight.grad.t().contiguous().t()),
    "settings": lambda model, optimizer: optimizer.param_groups[0].update(lr=0.1, betas=(0.4, 0.9), weight_decay=0.0),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_step_sees_what_changed_since_the_last(engine, strict, change):
    both = pair(AdamW, {})
    for i in range(6):
        for model, optimizer in both:
            optimizer.zero_grad()
            model(torch.full((5, 4), 1.0 + i)).square().mean().backward()
            if i == 3:
                CHANGES[change](model, optimizer)
            optimizer.step()
    (plain, theirs), (ours, mine) = both
    assert_same(ours.state_dict(), plain.state_dict(), 2e-6)
    for p, wanted in zip(ours.parameters(), plain.parameters(), strict=True):
        assert_same(mine.state[p], theirs.state[wanted], 2e-6)


def test_profilers_see_the_optimizer(strict):
    _, (model, optimizer) = pair(AdamW, {})
    step(model, optimizer, torch.ones(2, 4))
    with torch.profiler.profile() as profile:
        step(model, optimizer, torch.ones(2, 4))
    names = {event.name for event in profile.events()}
    assert {"Optimizer.step#AdamW.step", "Optimizer.zero_grad#AdamW.zero_grad"} <= names


def test_hooks_on_all_optimizers_run(strict):
    _, (model, optimizer) = pair(AdamW, {})
    calls = []
    handle = register_optimizer_step_post_hook(lambda *_: calls.append(1))
    try:
        step(model, optimizer, torch.ones(2, 4))
    finally:
        handle.remove()
    assert calls == [1]


def test_zero_grad_keeps_gradients_that_are_to_be_set_to_zero(strict):
    _, (model, optimizer) = pair(AdamW, {})
    step(model, optimizer, torch.ones(2, 4))
    gradient = model[0].weight.grad
    optimizer.zero_grad(set_to_none=False)
    assert model[0].weight.grad is gradient and not gradient.any()
    optimizer.zero_grad()
    assert model[0].weight.grad is None
    assert "zero_grad" not in copy.deepcopy(optimizer).__dict__


def test_state_that_is_replaced_is_let_go(strict):
    _, (model, optimizer) = pair(AdamW, {})
    for _ in range(2):
        step(model, optimizer, torch.ones(2, 4))
    moment = weakref.ref(optimizer.state[model[0].weight]["exp_avg"])
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert moment() is None
