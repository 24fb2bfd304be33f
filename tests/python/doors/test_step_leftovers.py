"""Gradients that a body leaves, adds to or drops in an unusual order: a compiled step gives PyTorch's numbers, or says that it
does not compile the body, before anything is changed."""

import threading
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.fx.experimental.sym_node import SymNode

import trainc
from trainc.torch.graph import sizes


def data():
    return torch.randn(6, 4), torch.randn(6, 3)


def sgd(*models):
    return torch.optim.SGD([p for m in models for p in m.parameters()], 0.1)


def refused(step, match, *arguments):
    """The error, which leaves everything as it is."""
    with pytest.raises(trainc.UserError, match=match):
        trainc.train_step(step)(*(arguments or data()))


AFTER = "leaves a gradient that it made after optimizer.step"


def test_a_gradient_of_the_next_step_is_refused(engine):
    model = nn.Linear(4, 3, bias=False)
    optimizer = sgd(model)

    def delayed(x, y):
        hidden = model(x)
        loss = F.mse_loss(hidden, y)
        loss.backward(retain_graph=True)
        optimizer.step(), optimizer.zero_grad()
        (hidden * y).sum().backward()
        return loss

    def by_hand(x, y):
        loss = F.mse_loss(model(x), y)
        loss.backward()
        gradient = model.weight.grad
        optimizer.step(), optimizer.zero_grad()
        model.weight.grad = 0.9 * gradient
        return loss

    def zeros(x, y):
        F.mse_loss(model(x), y).backward()
        optimizer.step(), optimizer.zero_grad(set_to_none=False)
        model(x * y.sum()).sum().backward()

    before = model.weight.detach().clone()
    for step in (delayed, by_hand, zeros):
        refused(step, AFTER)
    assert torch.equal(model.weight, before) and model.weight.grad is None


def test_a_second_loss_that_reaches_what_was_updated(engine):
    first, second = nn.Linear(4, 3), nn.Linear(4, 3)
    one, two = sgd(first), sgd(second)

    def step(x, y):
        hidden = first(x)
        loss = F.mse_loss(hidden, y)
        loss.backward(retain_graph=True)
        one.step(), one.zero_grad()
        (F.mse_loss(second(x), y) + (hidden * y).mean()).backward()
        two.step(), two.zero_grad()

    refused(step, AFTER)


def test_two_players_of_one_body_whose_gradients_are_cleared_in_time(engine):
    """What the first loss adds to the second player's gradient is dropped before anybody reads it."""
    found = []
    for wrap in (lambda body: body, trainc.train_step):
        torch.manual_seed(0)
        made, judge = nn.Linear(4, 4), nn.Linear(4, 1)
        one, two = sgd(made), sgd(judge)

        def body(x, made=made, judge=judge, one=one, two=two):
            one.zero_grad()
            fake = made(x)
            won = -judge(fake).mean()
            won.backward(), two.zero_grad()
            lost = (judge(fake.detach()) - judge(x)).mean()
            lost.backward(), one.step(), two.step()
            return won, lost

        step = wrap(body)
        found.append([torch.stack(step(torch.randn(6, 4))).detach() for _ in range(4)])
    assert torch.allclose(torch.stack(found[0]), torch.stack(found[1]), rtol=1e-5)


def test_what_is_added_to_and_dropped_unread_may_hold_a_gradient(engine):
    made, judge = nn.Linear(4, 4), nn.Linear(4, 1)
    one, two = sgd(made), sgd(judge)

    def body(x):
        one.zero_grad()
        loss = -judge(made(x)).mean()
        loss.backward(), one.step(), two.zero_grad()
        return loss

    step = trainc.train_step(body)
    for _ in range(2):
        judge(torch.randn(6, 4)).mean().backward()
        step(torch.randn(6, 4))
        assert judge.weight.grad is None


@pytest.mark.parametrize("first", ["clears first", "clears last"])
def test_what_one_step_leaves_another_one_adds_to(engine, first):
    model = nn.Linear(4, 3)
    optimizer = sgd(model)

    def clears_first(x, y):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward(), optimizer.step()
        return loss

    def clears_last(x, y):
        loss = model(x).square().mean()
        loss.backward(), optimizer.step(), optimizer.zero_grad()
        return loss

    first_, last = trainc.train_step(clears_first), trainc.train_step(clears_last)
    if first == "clears last":
        last(*data())  # nothing is left yet
    first_(*data()), first_(*data())
    before = model.weight.detach().clone()
    with pytest.raises(trainc.UserError, match="another step has updated these parameters"):
        last(*data())
    assert torch.equal(model.weight, before)
    first_(*data())


def test_a_gradient_from_before_that_the_body_adds_to_and_drops(engine):
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = sgd(model[2])

    def clips(x, y):
        F.mse_loss(model(x), y).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step(), model.zero_grad()
        return norm

    step = trainc.train_step(clips)
    step(*data())
    model[0](torch.ones(1, 4)).sum().backward()
    with pytest.raises(trainc.UserError, match="holds one from before"):
        step(*data())
    model.zero_grad()
    step(*data())

    def of_input(x, y):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        gradient, x.grad = x.grad, None
        return gradient

    step, x = trainc.train_step(of_input), torch.randn(6, 4, requires_grad=True)
    step(x, data()[1])
    (x * 3).sum().backward()
    with pytest.raises(trainc.UserError, match="holds one from before"):
        step(x, data()[1])


def test_what_is_dropped_after_the_update_was_there_before_it(engine):
    model = nn.ModuleDict({"used": nn.Linear(4, 3), "other": nn.Linear(4, 3)})
    optimizer = sgd(model)

    def body(x, y):
        F.mse_loss(model["used"](x), y).backward()
        optimizer.step(), model.zero_grad()

    step = trainc.train_step(body)
    step(*data())
    model["other"](torch.ones(1, 4)).sum().backward()
    with pytest.raises(trainc.UserError, match="gradients from outside of the step"):
        step(*data())
    model["other"].zero_grad()
    step(*data())


def test_a_gradient_of_another_shape_and_a_parameter_twice(engine):
    model = nn.Linear(4, 3)
    optimizer = sgd(model)

    def broadcast(x, y):
        optimizer.zero_grad()
        model(x).backward(y[:1])
        optimizer.step()

    with pytest.raises(RuntimeError, match="Mismatch in shape"):  # eager's own
        trainc.train_step(broadcast)(torch.randn(6, 4), torch.randn(6, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        twice = torch.optim.AdamW([*model.parameters(), model.weight], 0.1)

    def updates(x, y):
        twice.zero_grad()
        F.mse_loss(model(x), y).backward()
        twice.step()

    refused(updates, "has a parameter twice")


def test_a_step_within_a_step(engine):
    model = nn.Linear(4, 3)
    optimizer = sgd(model)

    @trainc.train_step
    def inner(x, y):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()

    def outer(x, y):
        inner(x, y)
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()

    refused(outer, "inner, which trainc.train_step compiles itself, is called within what is compiled")
    inner(*data())


@torch.library.custom_op("trainc_leftovers::check", mutates_args=())
def check(x: torch.Tensor) -> None:
    if float(x.abs().max()) > 100:
        raise RuntimeError("too large")


@check.register_fake
def _(x):
    return None


CHECKS = {
    "assertion": lambda x: torch._assert_async((x.abs() < 100).all()),
    "assertion with words": lambda x: torch._assert_async((x.abs() < 100).all(), "too large"),
    "operation of the program's": check,
}


class Checked(nn.Linear):
    check = None

    def forward(self, x):
        self.check(x)
        return super().forward(x)


@pytest.mark.parametrize("door", ["compile", "step"])
@pytest.mark.parametrize("kind", CHECKS)
def test_what_only_checks_is_no_dead_code(core, door, kind):
    model = type("Model", (Checked,), {"check": staticmethod(CHECKS[kind])})(4, 3)
    optimizer = sgd(model)
    if door == "compile":
        model, optimizer = trainc.compile(model, optimizer)

    def step(x, y):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward(), optimizer.step()
        return loss

    step = trainc.train_step(step) if door == "step" else step
    step(*data())
    before = model.weight.detach().clone()
    with pytest.raises(RuntimeError):
        step(torch.full((6, 4), 1e4), data()[1])
    assert torch.equal(model.weight, before)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("scripted", [lambda m: nn.Sequential(torch.jit.script(m[0]), m[1]), torch.jit.script])
def test_modules_of_torchscript_stay_pytorchs(core, scripted):
    model = scripted(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3)))
    x, y = data()
    wanted = model(x).detach()
    optimizer = sgd(model)

    def step(x, y):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()

    refused(step, "TorchScript", x, y)
    assert torch.equal(model(x), wanted)
    if isinstance(model, torch.jit.ScriptModule):
        with pytest.raises(trainc.UserError, match="ScriptModule"):
            trainc.compile(model)
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compiled = trainc.compile(model)
        assert torch.equal(compiled(x), wanted) and torch.equal(compiled(x), wanted)
    assert sum("TorchScript" in str(w.message) for w in caught) == 1


def test_threads_put_back_how_sizes_are_computed():
    """Each puts a table of its own in PyTorch's place: one after the other."""
    before, inside = SymNode.__dict__["lt"], threading.Event()

    def trace():
        with sizes.answered_once():
            inside.set()

    other = threading.Thread(target=trace)
    with sizes.answered_once():
        other.start()
        assert not inside.wait(0.2)
    other.join()
    assert inside.is_set() and SymNode.__dict__["lt"] is before


def test_backward_by_its_other_name(engine):
    """`torch.autograd.backward`, with its own names of arguments."""
    found = []
    for wrap in (lambda body: body, trainc.train_step):
        torch.manual_seed(0)
        model = nn.Linear(4, 3)
        optimizer = sgd(model)

        def body(x, y, model=model, optimizer=optimizer):
            optimizer.zero_grad()
            out = model(x)
            torch.autograd.backward(tensors=[out], grad_tensors=[y])
            optimizer.step()
            return out

        step = wrap(body)
        found.append(torch.stack([step(*data()).detach() for _ in range(3)]))
    assert torch.allclose(*found, rtol=1e-5, atol=1e-6)


def test_zeros_in_the_place_of_a_gradient_from_before(engine):
    """Zeros update a parameter (decay), which no gradient would not; where nobody steps, zeros are what is left."""
    one, two = nn.Linear(4, 3), nn.Linear(4, 3)
    models = nn.ModuleList([one, two])
    both, second = torch.optim.SGD(models.parameters(), 0.1, weight_decay=0.1), sgd(two)

    def updates(x, y):
        both.zero_grad(set_to_none=False)
        loss = F.mse_loss(models[0](x), y)
        loss.backward(), both.step()
        return loss

    def clears(x, y):
        second.zero_grad(set_to_none=False)
        loss = F.mse_loss(one(x), y)
        loss.backward(), first.step(), first.zero_grad()
        return loss

    first, held = sgd(one), torch.ones(3)
    two.bias.grad, before = held, two.bias.detach().clone()
    trainc.train_step(clears)(*data())
    assert two.bias.grad is held and torch.equal(held, torch.zeros(3)) and two.weight.grad is None
    with pytest.raises(trainc.UserError, match="gradients from outside"):
        trainc.train_step(updates)(*data())
    assert torch.equal(two.bias, before) and two.bias.grad is held
