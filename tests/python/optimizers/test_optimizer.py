"""The optimizer's step: torch's results, torch's state, and everything that loops do to an optimizer."""

import collections
import copy
import functools
import warnings
import weakref

import pytest
import torch
from conftest import assert_same
from optimizer_variants import FLAGS, LEFT
from torch import nn
from torch.optim import ASGD, SGD, Adafactor, Adagrad, Adam, AdamW, NAdam
from torch.optim.optimizer import register_optimizer_step_post_hook

import trainc
from trainc.base import records
from trainc.torch.doors.memory import state_bytes
from trainc.torch.optimizers import FORMULAS
from trainc.torch.optimizers.settings import Remembered

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
    *((make, {}) for make in FLAGS if make not in (SGD, Adam, AdamW)),
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


def test_every_optimizer_of_pytorch_is_compiled_or_named():
    public = {each for each in vars(torch.optim).values() if isinstance(each, type)} - {torch.optim.Optimizer}
    assert public == FORMULAS.keys() | LEFT.keys() and not FORMULAS.keys() & LEFT.keys()


def test_every_setting_of_every_optimizer_has_a_variant():
    """Each flag of the constructor is on in one of the variants, and off in another."""
    assert FLAGS.keys() == FORMULAS.keys()
    for make, variants in FLAGS.items():
        defaults = make([nn.Parameter(torch.ones(1))]).defaults
        flags = {name for name, value in defaults.items() if type(value) is bool} - {"capturable", "differentiable"}
        for name in flags | {"weight_decay", "foreach"} & defaults.keys():
            values = {bool(flags.get(name, defaults[name])) for flags in variants}
            fixed = make is AdamW and name == "decoupled_weight_decay"
            assert values == {True, False} or fixed, f"{make.__name__}: {name} is always {values}"


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("make", FLAGS, ids=lambda make: make.__name__)
def test_every_variant_in_every_type(engine, make, dtype):
    """Parameters, every tensor of the state, and what must not be written: after each of the first steps."""
    for flags in FLAGS[make]:
        if make is SGD and flags.get("fused") and dtype.itemsize == 2:
            continue  # torch's own kernel (2.13) gives other momenta for the last elements each time
        torch.manual_seed(0)
        empty = [] if make is Adafactor else [(0,)]  # eager divides by the number of elements
        shapes = [(), (1,), (3,), (5, 7), *empty, (2000,), (2, 3, 4)]
        plain = nn.ParameterList([torch.randn(shape).to(dtype) for shape in shapes])
        ours = copy.deepcopy(plain)
        optimizers = [make(parameters.parameters(), **{"lr": 0.1, **flags}) for parameters in (plain, ours)]
        trainc.compile(ours, optimizers[1])
        for number in range(1, 8):  # RAdam's rectification sets in at the sixth
            for i, (theirs, p) in enumerate(zip(plain, ours, strict=True)):
                theirs.grad = None if number == 2 and i == 3 else torch.randn(theirs.shape).to(dtype)
                p.grad = None if theirs.grad is None else theirs.grad.clone()
            for optimizer in optimizers:
                optimizer.step()
            bound = {torch.float32: 2e-6, torch.float64: 4e-15}.get(dtype, 0.0)
            what = f"{flags}, {dtype}, step {number}"
            for theirs, p in zip(plain, ours, strict=True):
                mine, state = optimizers[1].state[p], optimizers[0].state[theirs]
                assert list(mine) == list(state), what
                assert [value.dtype for value in mine.values()] == [value.dtype for value in state.values()], what
                pairs = {key: (mine[key], value) for key, value in state.items()}
                for key, (got, value) in {**pairs, "parameter": (p.detach(), theirs.detach())}.items():
                    told = functools.partial("{}, {}: {}".format, key, what)
                    scale = max(1.0, value.abs().nan_to_num(0, 0).max().item()) if value.numel() else 1.0
                    torch.testing.assert_close(got, value, rtol=bound, atol=bound * scale, equal_nan=True, msg=told)
                assert p.grad is None if theirs.grad is None else torch.equal(p.grad, theirs.grad), what
        made = records.of(optimizers[1])
        assert bool(made) == (dtype.itemsize > 2) and all(r.engine == engine and r.optimizer is not None for r in made), flags


EACH = pytest.mark.parametrize("make", FLAGS, ids=lambda make: make.__name__)
BOUNDS = {torch.float32: 2e-6, torch.float64: 4e-15}


def set_gradients(*models):
    for same in zip(*(model.parameters() for model in models), strict=True):
        gradient = torch.randn(same[0].shape).to(same[0].dtype)
        for p in same:
            p.grad = gradient.clone() if p.requires_grad else None


def assert_alike(ours, plain, dtype=torch.float32):
    (model, optimizer), (wanted, theirs) = ours, plain
    bound = BOUNDS.get(dtype, 0.0)
    assert_same(model.state_dict(), wanted.state_dict(), bound)
    mine, states = optimizer.state_dict(), theirs.state_dict()
    assert mine["param_groups"] == states["param_groups"]
    assert_same(mine["state"], states["state"], bound)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@EACH
def test_state_goes_to_and_from_a_plain_optimizer(engine, strict, make, dtype):
    """At any step, in both directions, for every variant."""
    for flags in FLAGS[make][:4]:
        plain, ours = pair(make, flags, dtype)
        for step in range(4):
            set_gradients(plain[0], ours[0])
            for _, optimizer in (plain, ours):
                optimizer.step()
            mine, theirs = (copy.deepcopy(optimizer.state_dict()) for _, optimizer in (ours, plain))
            if step % 2 == 0:
                ours[1].load_state_dict(theirs)
                plain[1].load_state_dict(mine)
            assert_alike(ours, plain, dtype)
        assert "step" not in copy.deepcopy(ours[1]).__dict__  # a copy is a plain optimizer


@pytest.mark.parametrize("before", [True, False])
@EACH
def test_schedulers_never_recompile_and_never_warn(engine, strict, make, before):
    (plain, theirs), (ours, mine) = pair(make, {"lr": 0.1})
    plain2 = copy.deepcopy(ours)
    mine2 = make(plain2.parameters(), lr=0.1)
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
    kernels = 1 if FORMULAS[make].elementwise else len({p.shape for p in plain.parameters() if p.requires_grad})
    assert len(records.of(mine2)) == kernels


@EACH
def test_closures_step_hooks_and_new_groups(engine, strict, make):
    plain, ours = pair(make, FLAGS[make][1])
    calls, extras = [], []
    for model, optimizer in (plain, ours):
        optimizer.register_step_post_hook(lambda *_: calls.append(1))

        def closure(model=model, optimizer=optimizer):
            optimizer.zero_grad()
            loss = model(torch.ones(2, 4)).square().mean()
            loss.backward()
            return loss

        losses = [optimizer.step(closure) for _ in range(2)]
        assert losses[1] != losses[0]
        extras.append(nn.Parameter(torch.ones(3)))
        extras[-1].grad = torch.ones(3)
        optimizer.add_param_group({"params": extras[-1:], "lr": 0.5})
        if make is torch.optim.Adagrad and torch.__version__.startswith("2.11."):
            with pytest.raises(KeyError):
                optimizer.step()
            pytest.skip("PyTorch 2.11's own Adagrad fails with a group that is added later")
        optimizer.step()
        assert extras[-1][0] != 1
    assert len(calls) == 6
    assert_same(extras[1].data, extras[0].data, 2e-6)
    assert_same(ours[0].state_dict(), plain[0].state_dict(), 2e-6)


@pytest.mark.parametrize("chosen", [slice(None), slice(1, 2)], ids=["some", "all"])
@EACH
def test_parameters_that_the_kernel_cannot_walk(engine, strict, make, chosen):
    for flags in FLAGS[make][:2]:
        both = []
        for compiled in (False, True):
            torch.manual_seed(0)
            params = [nn.Parameter(t) for t in (torch.randn(4, 3).t(), torch.randn(3).bfloat16(), torch.randn(2, 2))]
            params = params[chosen]
            optimizer = make(params, **flags)
            if compiled:
                trainc.compile(nn.Linear(1, 1), optimizer)
            for _ in range(3):
                for p in params:
                    p.grad = torch.ones(p.shape, dtype=p.dtype)
                optimizer.step()
            both.append((nn.ParameterList(params), optimizer))
        assert_alike(both[1], both[0])


@EACH
def test_parameters_that_share_memory(engine, strict, make):
    """The kernel refuses them; what it counted before is taken back."""
    for flags in FLAGS[make][:2]:
        both = []
        for compiled in (False, True):
            torch.manual_seed(0)
            memory = torch.randn(6)
            params = [nn.Parameter(memory[:4]), nn.Parameter(memory[2:]), nn.Parameter(torch.randn(3))]
            optimizer = make([{"params": params[:2]}, {"params": params[2:]}], **flags)
            if compiled:
                trainc.compile(nn.Linear(1, 1), optimizer)
            torch.manual_seed(1)
            for _ in range(3):
                for p in params:
                    p.grad = torch.randn(p.shape)
                optimizer.step()
            both.append((nn.ParameterList(params), optimizer))
        assert_alike(both[1], both[0])


@EACH
def test_numbers_of_several_types(engine, strict, make):
    """The type of the numbers in a state is PyTorch's default type when the state is made."""
    plain, ours = pair(make, FLAGS[make][1])
    for step in range(4):
        set_gradients(plain[0], ours[0])
        for model, optimizer in (plain, ours):
            if step == 0:
                model[0].bias.grad = None  # its state is made later than that of the others
            try:
                torch.set_default_dtype(torch.float64 if step == 0 else torch.float32)
                optimizer.step()
            finally:
                torch.set_default_dtype(torch.float32)
    assert_alike(ours, plain)


@EACH
def test_settings_that_are_tensors_stay_pytorchs(engine, strict, make):
    plain, ours = pair(make, {"lr": torch.tensor(0.01)})
    for _ in range(2):
        set_gradients(plain[0], ours[0])
        for _, optimizer in (plain, ours):
            optimizer.step()
    assert_alike(ours, plain)
    assert not records.of(ours[1])


def test_sparse_gradients_stay_pytorchs(engine, strict):
    for make in (SGD, Adagrad):
        both = []
        for compiled in (False, True):
            torch.manual_seed(0)
            model = nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Linear(3, 2))
            optimizer = make(model.parameters(), lr=0.1)
            if compiled:
                trainc.compile(nn.Linear(1, 1), optimizer)
            for i in range(3):
                optimizer.zero_grad()
                model(torch.tensor([0, 3, i])).square().sum().backward()
                optimizer.step()
            both.append((model, optimizer))
        assert_alike(both[1], both[0])


@EACH
def test_memory_knows_the_state_before_it_is_made(make):
    for flags in FLAGS[make]:
        model = nn.Sequential(nn.Linear(64, 32), nn.Conv2d(8, 8, 3), nn.Embedding(10, 16)).double()
        optimizer = make(model.parameters(), **flags)
        told, made = state_bytes(optimizer), bool(optimizer.state)  # Adagrad makes it at once
        set_gradients(model)
        optimizer.step()
        tensors = [t for state in optimizer.state.values() for t in state.values() if t.dim() or made]
        assert told == sum(t.numel() * t.element_size() for t in tensors), flags


def test_double_precision(engine, strict):
    plain, ours = pair(AdamW, {}, torch.float64)
    for model, optimizer in (plain, ours):
        for _ in range(3):
            step(model, optimizer, torch.ones(2, 4, dtype=torch.float64))
    assert_same(ours[0].state_dict(), plain[0].state_dict(), 1e-14)


@EACH
def test_grad_scaler_skips_steps_with_inf(engine, strict, make):
    plain, ours = pair(make, {})
    for model, optimizer in (plain, ours):
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        for value in (1.0, float("inf"), 2.0):
            optimizer.zero_grad()
            scaler.scale(model(torch.full((2, 4), value)).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
    assert_alike(ours, plain)


def test_autograd_sees_that_the_weights_changed(engine, strict):
    _, (model, optimizer) = pair(AdamW, {})
    loss = model(torch.ones(2, 4)).square().mean()
    model(torch.ones(2, 4)).square().mean().backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


class Doubling(AdamW):
    """A user's own step."""

    def step(self, closure=None):
        super().step(closure)
        super().step(closure)


@pytest.mark.parametrize("make", [*LEFT, Doubling], ids=lambda make: make.__name__)
def test_other_optimizers_stay_as_they_are(engine, make):
    model = nn.Linear(2, 2, bias=False)
    optimizer = make(model.parameters())
    trainc.compile(model, optimizer)
    assert "step" not in optimizer.__dict__
    assert records.of(optimizer)[0].route == "eager" and "not one of AdamW, Adam" in records.of(optimizer)[0].reason


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


def _set_first_state(model, optimizer):
    state = optimizer.state[model[0].weight]
    if names := [name for name, value in state.items() if value.dim()]:
        state[names[0]] = torch.ones_like(state[names[0]])


def _set_number(model, optimizer):
    state = optimizer.state[model[0].weight]
    if "step" in state:
        state["step"] = torch.tensor(7.0)


def _fill_numbers(model, optimizer):
    for value in optimizer.state[model[0].weight].values():
        if not value.dim():
            value.fill_(0.25)


CHANGES = {
    "nothing": lambda model, optimizer: None,
    "a moment": _set_first_state,
    "a step's tensor": _set_number,
    "numbers": _fill_numbers,
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
    "maximize": lambda model, optimizer: optimizer.param_groups[0].update(maximize=True),
}


CHANGED = [
    (AdamW, {}), (SGD, {"lr": 0.01, "momentum": 0.5}), (SGD, {"lr": 0.01}), (NAdam, {}), (ASGD, {"t0": 1}), (Adafactor, {}),
]  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(("make", "flags"), CHANGED)
def test_a_step_sees_what_changed_since_the_last(engine, strict, make, flags, change):
    both = pair(make, flags)
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


def test_a_tensor_that_equals_the_last_setting_is_a_tensor():
    """What is remembered of a group's settings goes by their types, too: a step refuses a rate that is a tensor, which may change
    in place, and 1 is not 1.0."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)

    @trainc.train_step
    def step(x):
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    step(torch.ones(2, 3))
    group = optimizer.param_groups[0]
    for name, equal in (("lr", torch.tensor(0.05)), ("betas", (torch.tensor(0.9), torch.tensor(0.999)))):
        kept, group[name] = group[name], equal
        with pytest.raises(trainc.UserError, match="a tensor as a setting"):
            step(torch.ones(2, 3))
        group[name] = kept
        step(torch.ones(2, 3))

    answer, group, found = Remembered(lambda group: repr(group["value"])), {"params": []}, []
    for value in (1, 1.0, True, (1,), (1.0,)):
        group["value"] = value
        found.append(answer(group))
    assert found == ["1", "1.0", "True", "(1,)", "(1.0,)"]
