"""What lies around a train_step's body: whatever would change the numbers is done as eager PyTorch does it, or refused."""

from __future__ import annotations

import builtins
import copy
import types

import pytest
import torch
from conftest import assert_same
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import trainc
from trainc.base import records
from trainc.torch.guards.reads import Reads

X = torch.tensor([[1.0, 2.0]])


def linear():
    torch.manual_seed(0)
    return nn.Linear(2, 1, bias=False)


def two():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 1))


def plain(model, optimizer):
    def step(x):
        optimizer.zero_grad()
        loss = model(x).pow(2).sum()
        loss.backward()
        optimizer.step()
        return loss

    return step


def sgd(model, lr=0.1):
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.5)


def same(program, **tolerance):
    """`program(wrap)`: what it gives, with steps in PyTorch and with steps that trainc compiles."""
    assert_same(program(trainc.train_step), program(lambda fn: fn), **tolerance)


def values(tensors):
    return [tensor.detach().clone() for tensor in tensors]


# ---- the recorder's own patches -------------------------------------------------------------------------------------


def test_gradient_penalty():
    def program(wrap):
        model = nn.Sequential(linear(), nn.Tanh())
        optimizer = sgd(model)

        def step(x):
            optimizer.zero_grad()
            x = x.detach().requires_grad_()
            y = model(x).sum()
            (slope,) = torch.autograd.grad(y, x, create_graph=True)
            loss = y + slope.pow(2).sum()
            torch.autograd.backward(loss)
            optimizer.step()
            return loss

        step = wrap(step)
        return [step(X), step(X), *values(model.parameters())]

    before = torch.autograd.backward, torch.Tensor.backward, builtins.print
    same(program)
    assert before == (torch.autograd.backward, torch.Tensor.backward, builtins.print)
    w = torch.ones(2, requires_grad=True)
    w.sum().backward()
    assert torch.equal(w.grad, torch.ones(2))


def test_patches_are_gone_after_a_refusal():
    model = linear()
    optimizer = sgd(model)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).sum()
        torch.autograd.backward(loss)
        if loss.item() < 0:
            builtins.print("below zero")
        optimizer.step()
        return loss

    before = torch.autograd.backward, torch.Tensor.backward, builtins.print
    with pytest.raises(trainc.UserError, match="value of a tensor"):
        trainc.train_step(step)(X)
    assert before == (torch.autograd.backward, torch.Tensor.backward, builtins.print)
    assert "step" not in vars(optimizer) and "zero_grad" not in vars(optimizer)


def test_gradient_of_a_tensor_made_in_the_step():
    def program(wrap):
        model = linear()
        optimizer = sgd(model)

        def step(x):
            x = x.detach().requires_grad_()
            optimizer.zero_grad()
            loss = model(x).pow(2).sum()
            loss.backward()
            optimizer.step()
            return x.grad if x.grad is not None else torch.zeros(1)

        step = wrap(step)
        return [step(X), step(X), *values(model.parameters())]

    same(program)


# ---- whose gradient -------------------------------------------------------------------------------------------------


def test_each_call_s_argument_gets_its_gradient():
    def program(wrap):
        model = linear()
        step = wrap(plain(model, sgd(model)))
        xs = [X.clone().requires_grad_() for _ in range(3)]
        for x in (*xs, xs[1]):
            step(x)
        return [x.grad for x in xs]

    same(program)


def test_gradients_are_added_in_place():
    def program(wrap):
        model = linear()
        step = wrap(plain(model, sgd(model)))
        flat, x = torch.zeros(2), X.clone().requires_grad_()
        x.grad = flat.view(1, 2)
        step(x)
        step(x)
        return [flat, x.grad]

    same(program)


def test_one_argument_twice():
    def program(wrap):
        model = linear()
        optimizer = sgd(model)

        def step(a, b):
            optimizer.zero_grad()
            loss = (model(a) * 2 + model(b)).pow(2).sum()
            loss.backward()
            optimizer.step()
            return loss

        step = wrap(step)
        x, y = X.clone().requires_grad_(), X.clone().requires_grad_()
        step(x, y)
        step(x, x)
        return [x.grad, y.grad]

    same(program)


def test_a_replaced_parameter_that_no_optimizer_has():
    def program(wrap):
        model = two()
        first = model[1].weight
        step = wrap(plain(model, sgd(model[0])))
        step(X)
        before = first.grad.clone()
        model[1].weight = nn.Parameter(torch.ones(1, 2))
        step(X)
        return [before, first.grad, model[1].weight.grad, *values(model.parameters())]

    same(program)


@pytest.mark.parametrize("first", [False, True])
def test_an_argument_that_is_not_a_leaf(first):
    model = linear()
    step = trainc.train_step(plain(model, sgd(model)))
    w = torch.ones(2, 2, requires_grad=True)
    if not first:
        step((X @ w).detach().requires_grad_())
    before = values(model.parameters())
    with pytest.raises(trainc.UserError, match="computed outside of the step.*detach"):
        step(X @ w)
    assert_same(values(model.parameters()), before)


def test_a_gradient_that_the_step_reads_and_that_is_there_before():
    model = two()
    optimizer = sgd(model[0])

    def step(x):
        optimizer.zero_grad()
        loss = model(x).pow(2).sum()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        return loss

    compiled = trainc.train_step(step)
    compiled(X)
    before = values(model.parameters())
    with pytest.raises(trainc.UserError, match="set its .grad to None"):
        compiled(X)
    assert_same(values(model.parameters()), before)


# ---- which parameters an optimizer has --------------------------------------------------------------------------------


def leaves(model, optimizer):
    optimizer.param_groups[1]["params"] = [model[1].bias]


def loses_its_place(model, optimizer):
    groups = optimizer.param_groups
    groups[0]["params"], groups[1]["params"] = groups[1]["params"], groups[0]["params"]


def removed_in_place(model, optimizer):
    del optimizer.param_groups[1]["params"][0]


def both_replaced(model, optimizer):
    model[0].weight = nn.Parameter(torch.ones(2, 2))
    optimizer.param_groups[0]["params"][0] = model[0].weight


@pytest.mark.parametrize("change", [leaves, loses_its_place, removed_in_place, both_replaced])
def test_an_optimizer_s_parameters_change(change):
    def program(wrap):
        model = two()
        groups = [{"params": list(model[0].parameters()), "lr": 0.1}, {"params": list(model[1].parameters()), "lr": 0.01}]
        optimizer = torch.optim.SGD(groups, momentum=0.5)
        step = wrap(plain(model, optimizer))
        step(X)
        change(model, optimizer)
        for p in model.parameters():
            p.grad = None
        step(X)
        first = values(model.parameters())
        return [*first, len(optimizer.state)]

    same(program)


@pytest.mark.parametrize("how", ["replaced", "assigned"])
def test_a_parameter_is_replaced_in_the_module(how):
    model = linear()
    step = trainc.train_step(plain(model, sgd(model)))
    step(X)
    if how == "replaced":
        model.weight = nn.Parameter(torch.ones(1, 2))
    else:
        model.load_state_dict({"weight": torch.ones(1, 2)}, assign=True)
    with pytest.raises(trainc.UserError, match="belongs to no module"):
        step(X)
    assert torch.equal(model.weight, torch.ones(1, 2))


# ---- hooks and wrappers -----------------------------------------------------------------------------------------------

HOOKS = {
    "tensor": lambda model: model.weight.register_hook(lambda grad: grad * 0),
    "accumulated": lambda model: model.weight.register_post_accumulate_grad_hook(lambda p: p.grad.mul_(0)),
    "pre": lambda model: register_optimizer_step_pre_hook(lambda *_: None),
    "post": lambda model: register_optimizer_step_post_hook(lambda *_: None),
}


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("kind", HOOKS)
def test_hooks(kind, after):
    model = linear()
    step = trainc.train_step(plain(model, sgd(model)))
    if after:
        step(X)
    before = values(model.parameters())
    handle = HOOKS[kind](model)
    try:
        with pytest.raises(trainc.UserError, match="hook"):
            step(X)
    finally:
        handle.remove()
    assert_same(values(model.parameters()), before)
    step(X)


def test_a_hook_that_the_step_registers():
    model = linear()
    optimizer = sgd(model)

    def step(x):
        model.weight.register_hook(lambda grad: grad * 2)
        optimizer.zero_grad()
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        return loss

    with pytest.raises(trainc.UserError, match="hook"):
        trainc.train_step(step)(X)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("name", ["step", "zero_grad"])
def test_a_method_of_the_optimizer_is_replaced(name, after):
    model = linear()
    optimizer = sgd(model)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)  # wraps step() itself, which is nothing to refuse
    step = trainc.train_step(plain(model, optimizer))
    if after:
        step(X)
        scheduler.step()
    before, theirs = values(model.parameters()), getattr(optimizer, name)
    setattr(optimizer, name, lambda *args, **kwargs: theirs(*args, **kwargs))
    with pytest.raises(trainc.UserError, match=f"SGD.{name} was replaced"):
        step(X)
    assert_same(values(model.parameters()), before)


# ---- zero_grad() and gradients from before ----------------------------------------------------------------------------


@pytest.mark.parametrize("make", [sgd, lambda m: torch.optim.AdamW(m.parameters(), lr=0.1)], ids=["sgd", "adamw"])
@pytest.mark.parametrize("last", [False, True])
def test_zero_grad_that_leaves_zeros(make, last):
    def program(wrap):
        model = two()
        optimizer = make(model)

        def step(x):
            if not last:
                optimizer.zero_grad(set_to_none=False)
            loss = model(x).pow(2).sum()
            loss.backward()
            optimizer.step()
            if last:
                optimizer.zero_grad(set_to_none=False)
            return loss

        step = wrap(step)
        return [step(X), step(X), *values(model.parameters())]

    same(program)


def test_zero_grad_that_leaves_zeros_where_no_gradient_comes():
    """Where another call made a gradient, PyTorch updates by its zeros (decay, momentum)."""
    found = []
    for wrap in (lambda body: body, trainc.train_step):
        torch.manual_seed(0)
        models = nn.ModuleList([linear(), linear()])
        optimizer = torch.optim.AdamW(models.parameters(), lr=0.1)

        def body(x, i, models=models, optimizer=optimizer):
            loss = models[i](x).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
            return loss

        step = wrap(body)
        found.append([step(X, 0), step(X, 0), *values(models.parameters())])
    assert_same(*found)
    with pytest.raises(trainc.UserError, match="another step has updated these parameters"):
        step(X, 1)
    assert_same(values(models.parameters()), found[1][2:])


def test_a_gradient_from_before_that_the_step_does_not_make():
    model = two()
    optimizer = sgd(model)
    model[1].weight.grad = torch.ones(1, 2)

    def step(x):
        loss = model[0](x).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    before = values(model.parameters())
    compiled = trainc.train_step(step)
    with pytest.raises(trainc.UserError, match="gradients from outside of the step"):
        compiled(X)
    assert_same(values(model.parameters()), before)
    assert torch.equal(model[1].weight.grad, torch.ones(1, 2))


def test_zero_grad_of_one_optimizer_clears_its_own():
    model = two()
    first, second = sgd(model[0]), sgd(model[1])

    def step(x):
        first.zero_grad()
        loss = model(x).sum()
        loss.backward()
        first.step()
        second.step()
        second.zero_grad()
        return loss

    compiled = trainc.train_step(step)
    model[0].weight.grad = torch.ones(2, 2)
    expected = copy.deepcopy(model)  # without gradients: zero_grad() drops them
    compiled(X)
    eager = [sgd(expected[0]), sgd(expected[1])]
    expected(X).sum().backward()
    for optimizer in eager:
        optimizer.step()
    assert_same(values(model.parameters()), values(expected.parameters()))
    model[1].weight.grad = torch.ones(1, 2)
    with pytest.raises(trainc.UserError, match="gradients from outside of the step"):
        compiled(X)


# ---- schedulers -------------------------------------------------------------------------------------------------------


def scheduled(body):
    """The error that a step with a scheduler, whose `body(optimizer, scheduler, loss)` follows backward(), is refused with."""
    model = linear()
    optimizer = sgd(model)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    groups = optimizer.param_groups

    def step(x):
        optimizer.zero_grad()
        loss = model(x).sum()
        loss.backward()
        return body(optimizer, scheduler, loss, groups[0])

    before = values(model.parameters())
    with pytest.raises(trainc.UserError) as caught:
        trainc.train_step(step)(X)
    assert_same(values(model.parameters()), before)
    assert optimizer.param_groups[0]["lr"] == 0.1 and scheduler.get_last_lr() == [0.1] and scheduler.last_epoch == 0
    return str(caught.value)


def test_scheduler_before_optimizer():
    def body(optimizer, scheduler, loss, group):
        scheduler.step()
        optimizer.step()
        return loss

    assert "before optimizer.step()" in scheduled(body)


@pytest.mark.parametrize(
    "read",
    [
        lambda o, s, loss, g: s.get_last_lr()[0],
        lambda o, s, loss, g: o.param_groups[0]["lr"],
        lambda o, s, loss, g: loss * g["lr"],
        lambda o, s, loss, g: loss if s.last_epoch > 3 else loss * 2,
        lambda o, s, loss, g: {"lr": [g["lr"]]},
    ],
    ids=["get_last_lr", "group", "held group", "epoch", "in a container"],
)
def test_a_rate_that_is_read_after_the_scheduler(read):
    def body(optimizer, scheduler, loss, group):
        optimizer.step()
        scheduler.step()
        return read(optimizer, scheduler, loss, group)

    assert "after scheduler.step()" in scheduled(body)


def test_a_scheduler_that_is_given_a_tensor():
    model = linear()
    optimizer = sgd(model)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        scheduler.step(loss)
        return loss

    before = values(model.parameters())
    with pytest.raises(trainc.UserError, match="ReduceLROnPlateau.*given a tensor"):
        trainc.train_step(step)(X)
    assert_same(values(model.parameters()), before)


def test_a_rate_that_is_read_before_the_scheduler():
    def program(wrap):
        model = linear()
        optimizer = sgd(model)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

        def step(x):
            optimizer.zero_grad()
            rate = optimizer.param_groups[0]["lr"]
            loss = model(x).sum()
            loss.backward()
            optimizer.step()
            scheduler.step()
            return loss, rate

        step = wrap(step)
        return [step(X), step(X), step(X), *values(model.parameters())]

    same(program)


# ---- what the body writes and names -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "write",
    [
        lambda batch, loss: batch["logs"].append(1),
        lambda batch, loss: batch.update(out=loss),
        lambda batch, loss: batch.update(x=batch["x"] * 2),
        lambda batch, loss: batch.pop("logs"),
    ],
)
def test_the_step_writes_into_its_arguments(write):
    model = linear()
    optimizer = sgd(model)

    def step(batch):
        optimizer.zero_grad()
        loss = model(batch["x"]).sum()
        loss.backward()
        optimizer.step()
        write(batch, loss.detach())
        return loss

    before = values(model.parameters())
    with pytest.raises(trainc.UserError, match="list or dictionary among its arguments"):
        trainc.train_step(step)({"x": X, "logs": []})
    assert_same(values(model.parameters()), before)


def test_a_method_named_eval():
    def program(wrap):
        model, other = linear(), linear()
        optimizer = sgd(model)
        other.eval()

        def step(x):
            other.eval()
            optimizer.zero_grad()
            loss = (model(x) - other(x).detach() + 1).pow(2).sum()
            loss.backward()
            optimizer.step()
            return loss

        step = wrap(step)
        return [step(X), step(X), *values(model.parameters())]

    same(program)


@pytest.mark.parametrize("how", ["name", "module"])
def test_globals_by_any_name_are_still_refused(how):
    model = linear()
    optimizer = sgd(model)

    def step(x):
        optimizer.zero_grad()
        scale = globals() if how == "name" else builtins.globals()
        loss = model(x * len(scale)).sum()
        loss.backward()
        optimizer.step()
        return loss

    with pytest.raises(trainc.UserError, match="globals"):
        trainc.train_step(step)(X)


# ---- what a step reads of its optimizer and its schedulers --------------------------------------------------------------


def reads(wrap, read, between, calls=7):
    """A step whose loss has `read(optimizer, scheduler)` as a factor; `between(i, optimizer, scheduler)` after each call i."""
    model = linear()
    optimizer = sgd(model, lr=0.05)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    def step(x):
        loss = model(x).pow(2).sum() * read(optimizer, scheduler)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    step, found = wrap(step), []
    for i in range(calls):
        found.append(step(X))
        between(i, optimizer, scheduler)
    return [*found, *values(model.parameters())], step


READ_BY_STEPS = {
    "rate": lambda o, s: 1 + o.param_groups[0]["lr"],
    "rate by its scheduler": lambda o, s: 1 + s.optimizer.param_groups[0]["lr"],
    "rates": lambda o, s: 1 + sum(group["lr"] for group in o.param_groups),
    "own attribute": lambda o, s: getattr(o, "mine", 1.0),
    "defaults": lambda o, s: 1 + o.defaults["lr"],
    "factor": lambda o, s: 1 + s.gamma,
    "first rates": lambda o, s: 1 + s.base_lrs[0],
    "last rate": lambda o, s: 1 + s.get_last_lr()[0],
}


def load(optimizer):
    optimizer.load_state_dict(optimizer.state_dict())


def set_all(i, optimizer, scheduler):
    optimizer.mine, scheduler.gamma, scheduler.base_lrs, optimizer.defaults["lr"] = 1.0 + i, 0.1 * i, [0.3 * i], 0.2 * i


BETWEEN_STEPS = {
    "schedule": lambda i, o, s: s.step(),
    "loaded": lambda i, o, s: (load(o) if i in (1, 4) else None, s.step()),
    "loaded, then set": lambda i, o, s: load(o) if i == 1 else o.param_groups[0].update(lr=0.3 / (i + 1)),
    "group replaced": lambda i, o, s: o.param_groups.__setitem__(0, {**o.param_groups[0], "lr": 0.2 / (i + 1)}),
    "all that it reads": set_all,
}


@pytest.mark.parametrize("between", BETWEEN_STEPS)
@pytest.mark.parametrize("read", READ_BY_STEPS)
def test_what_a_step_reads_of_what_trains(read, between):
    same(lambda wrap: reads(wrap, READ_BY_STEPS[read], BETWEEN_STEPS[between])[0])


def test_a_rate_is_the_same_input_after_its_groups_were_loaded():
    found, steps, compiled = [], [], []

    def between(i, optimizer, scheduler):
        if i in (0, 6):  # the first changes the order of the settings: PyTorch puts `params` last
            optimizer.load_state_dict(optimizer.state_dict())
        scheduler.step()
        compiled.append(len(records.of(steps[-1])))

    for wrap in (lambda body: body, trainc.train_step):

        def kept(body, wrap=wrap):
            steps.append(wrap(body))
            return steps[-1]

        found.append(reads(kept, READ_BY_STEPS["rate"], between, 12)[0])
    assert_same(*found)
    assert compiled[12 + 5] == compiled[-1] <= 4


class Own(torch.optim.lr_scheduler.LRScheduler):
    """What it has is another at each step, and so are settings that PyTorch's schedulers leave alone."""

    def __init__(self, optimizer):
        self.scale = 1.0
        super().__init__(optimizer)

    def get_lr(self):
        self.scale *= 0.5
        for group in self.optimizer.param_groups:
            group["weight_decay"] += 0.01
        return [group["lr"] * 0.9 for group in self.optimizer.param_groups]


kinds = torch.optim.lr_scheduler
SCHEDULERS = {
    "StepLR": lambda o: kinds.StepLR(o, 2), "LambdaLR": lambda o: kinds.LambdaLR(o, lambda n: 1 / (n + 1)),
    "CosineAnnealingLR": lambda o: kinds.CosineAnnealingLR(o, 10),
    "OneCycleLR": lambda o: kinds.OneCycleLR(o, 0.1, total_steps=20),
    "CosineAnnealingWarmRestarts": lambda o: kinds.CosineAnnealingWarmRestarts(o, 3),
    "CyclicLR": lambda o: kinds.CyclicLR(o, 0.01, 0.1),
    "SequentialLR": lambda o: kinds.SequentialLR(o, [kinds.ConstantLR(o), kinds.ExponentialLR(o, 0.9)], [3]),
    "ChainedScheduler": lambda o: kinds.ChainedScheduler([kinds.ConstantLR(o), kinds.ExponentialLR(o, 0.9)]),
    "ReduceLROnPlateau": lambda o: kinds.ReduceLROnPlateau(o, patience=0),
    "SWALR": lambda o: torch.optim.swa_utils.SWALR(o, 0.05),
    "Own": Own,
}  # fmt: skip


def computed(thing, name):
    return getattr(thing, name)


@pytest.mark.parametrize("computes_names", [False, True])
@pytest.mark.parametrize("where", ["inside", "outside"])
@pytest.mark.parametrize("kind", SCHEDULERS)
def test_a_scheduler_s_steps_compile_and_look_up_nothing_again(kind, where, computes_names, monkeypatch):
    """What it changes is nothing that the step reads: neither is it traced again, nor are its objects walked again."""
    walks, again = [], Reads.again
    monkeypatch.setattr(Reads, "again", lambda self, *args, **kwargs: (walks.append(0), again(self, *args, **kwargs))[1])
    steps = []

    def program(wrap):
        model = linear()
        optimizer = sgd(model)
        scheduler = SCHEDULERS[kind](optimizer)
        settings = types.SimpleNamespace(by=1.0)
        arguments = (1.0,) if kind == "ReduceLROnPlateau" else ()

        def body(x):
            loss = model(x).pow(2).sum() * (computed(settings, "by") if computes_names else 1.0)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if where == "inside":
                scheduler.step(*arguments)
            return loss

        steps.append(wrap(body))
        found = []
        for _ in range(6):
            found.append(steps[-1](X))
            if where == "outside":
                scheduler.step(*arguments)
        return [*found, *values(model.parameters())]

    same(program)
    assert len(records.of(steps[0])) == 1
    assert len(walks) <= 2


@pytest.mark.parametrize("read", [lambda o, s: s.scale, lambda o, s: o.param_groups[0]["weight_decay"]], ids=["own", "setting"])
def test_what_an_own_scheduler_sets_is_not_read_after_it(read):
    model = linear()
    optimizer = sgd(model)
    scheduler = Own(optimizer)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        scheduler.step()
        return loss.detach() * read(optimizer, scheduler)

    with pytest.raises(trainc.UserError, match=r"after scheduler.step\(\)"):
        trainc.train_step(step)(X)
    assert scheduler.scale == 0.5 and optimizer.param_groups[0]["weight_decay"] == 0.01
