"""What a train_step's body does with tensors: which it reaches and how, what of gradients it reads, what it gives back. As eager
PyTorch at every step, or refused with nothing changed."""

from __future__ import annotations

import collections
import copy
import pickle
import sys
import types

import numpy
import pytest
import torch
from conftest import assert_same
from torch import nn

import trainc

BATCHES = [torch.randn(3, 4, generator=torch.Generator().manual_seed(seed)) for seed in range(4)]


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))


def sgd(*modules, lr=0.1):
    return torch.optim.SGD([p for module in modules for p in module.parameters()], lr=lr, momentum=0.9)


def loss_of(model, x):
    return model(x).pow(2).sum()


def state(model, *optimizers):
    tensors = [*model.parameters(), *model.buffers()]
    found = [each.detach().clone() for each in tensors]
    for optimizer in optimizers:
        found += [t.clone() for p in tensors for t in optimizer.state.get(p, {}).values() if isinstance(t, torch.Tensor)]
    return [*found, [t.requires_grad for t in tensors], [group["lr"] for group in optimizers[0].param_groups]]


def plain(value):
    """What a step returned, with tensors as they are now."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def steps(build, wrap, batches=BATCHES):
    """All that can be seen of a program's steps. `build()` gives (step, model, optimizers, what happens before each call)."""
    step, model, optimizers, before = build()
    step, seen, results = wrap(step), [], []
    for i, x in enumerate(batches):
        before(i)
        results.append(step(x.clone()))
        seen += [plain(results[-1]), state(model, *optimizers)]
    return [*seen, plain(results)]  # results that lie in memory of the model's


def equal(got, wanted):
    assert type(got) is type(wanted)
    if isinstance(wanted, torch.Tensor):
        assert_same(got, wanted)
    elif isinstance(wanted, (list, tuple)):
        assert len(got) == len(wanted)
        for a, b in zip(got, wanted, strict=True):
            equal(a, b)
    elif isinstance(wanted, dict):
        equal(list(got.items()), list(wanted.items()))
    else:
        assert got == wanted


def program(body, make=net, before=lambda *_: None):
    """`body(model, optimizer, x)` as a program of one model."""

    def build():
        model = make()
        optimizer = sgd(model)

        def step(x):
            return body(model, optimizer, x)

        return step, model, [optimizer], lambda i: before(i, model, optimizer)

    return build


def as_eager(build):
    equal(steps(build, trainc.train_step), steps(build, lambda step: step))


def refused(build, words, after=0):
    """The call after `after` is refused, and changes nothing."""
    step, model, optimizers, before = build()
    step = trainc.train_step(step)
    for i in range(after):
        before(i)
        step(BATCHES[i])
    before(after)
    was, gradients = state(model, *optimizers), [p.grad for p in model.parameters()]
    with pytest.raises(trainc.UserError, match=words):
        step(BATCHES[after])
    equal(state(model, *optimizers), was)
    assert all(p.grad is grad for p, grad in zip(model.parameters(), gradients, strict=True))


# ---- the model's tensors, reached in another way than through it ------------------------------------------------------


def of_groups(model, optimizer):
    return [p for group in optimizer.param_groups for p in group["params"]]


def clip(parameters, loss):
    return nn.utils.clip_grad_norm_(parameters, 0.1)


def clamp(parameters, loss):
    for p in parameters:
        if p.grad is not None:
            p.grad.clamp_(-0.01, 0.01)
    return loss.detach()


def scale_by_foreach(parameters, loss):
    torch._foreach_mul_([p.grad for p in parameters if p.grad is not None], 0.5)
    return loss.detach()


def norm_of_weights(parameters, loss):
    return sum(p.detach().norm() for p in parameters)


@pytest.mark.parametrize("use", [clip, clamp, scale_by_foreach, norm_of_weights])
@pytest.mark.parametrize("where", ["list", "groups", "dictionary", "variable"])
def test_parameters_by_another_way(where, use):
    def build():
        model = net()
        optimizer = sgd(model)
        listed, named, first = list(model.parameters()), dict(model.named_parameters()), model[0].weight

        def step(x):
            optimizer.zero_grad()
            loss = loss_of(model, x)
            loss.backward()
            if where == "list":
                found = listed
            elif where == "groups":
                found = of_groups(model, optimizer)
            else:
                found = named.values() if where == "dictionary" else [first]
            told = use(found, loss)
            optimizer.step()
            return told

        return step, model, [optimizer], lambda i: None

    as_eager(build)


def test_a_penalty_on_parameters_of_a_list():
    def build():
        model = net()
        optimizer, listed = sgd(model), dict(model.named_parameters())

        def step(x):
            optimizer.zero_grad()
            loss = torch.func.functional_call(model, listed, (x,)).sum() + sum(p.abs().sum() for p in listed.values())
            loss.backward()
            optimizer.step()
            return loss

        return step, model, [optimizer], lambda i: None

    as_eager(build)


def test_a_parameter_of_a_list_that_is_replaced_in_the_module():
    def build():
        model = net()
        optimizer, listed = torch.optim.SGD(model[0].parameters(), lr=0.1), [model[2].weight]

        def step(x):
            optimizer.zero_grad()
            loss = loss_of(model, x) + sum(p.sum() for p in listed)
            loss.backward()
            optimizer.step()
            return loss

        def before(i):
            if i == 2:
                model[2].weight = nn.Parameter(torch.ones(2, 5))

        return step, model, [optimizer], before

    step, model, _, before = build()
    step = trainc.train_step(step)
    for i in range(2):
        step(BATCHES[i])
    before(2)
    with pytest.raises(trainc.UserError):
        step(BATCHES[2])


def test_a_tensor_of_nobody_s_whose_gradient_is_read():
    other = torch.zeros(1, requires_grad=True)

    def body(model, optimizer, x):
        optimizer.zero_grad()
        loss = loss_of(model, x) * (2.0 if other.grad is None else 3.0)
        loss.backward()
        optimizer.step()
        return loss

    refused(program(body), "`grad` of a tensor of shape .1. that is none of its modules")


def test_a_scale_that_a_gradscaler_keeps():
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(torch.ones(1))

    def body(model, optimizer, x):
        optimizer.zero_grad()
        loss = loss_of(model, x) * scaler.get_scale()
        loss.backward()
        optimizer.step()
        return loss

    def before(i, *_):
        scaler.update(float(i + 1))

    as_eager(program(body, before=before))


@pytest.mark.parametrize("where", ["groups", "list", "global"])
def test_attributes_of_tensors(where):
    def build():
        model = net()
        optimizer, listed, other = sgd(model), list(model.parameters()), torch.ones(1)
        other.scale = 0.5

        def step(x):
            optimizer.zero_grad()
            loss = loss_of(model, x) * (other.scale if where == "global" else 1.0)
            loss.backward()
            for p in of_groups(model, optimizer) if where == "groups" else listed:
                p.grad.mul_(getattr(p, "scale", 1.0))
            optimizer.step()
            return loss

        def before(i):
            if i == 1 or i == 2:
                model[0].weight.scale = 1.0 / (i + 1)
            elif i == 3:
                model[2].weight.scale = other.scale = 0.1

        return step, model, [optimizer], before

    as_eager(build)


@pytest.mark.parametrize("change", [lambda x: x.t_(), lambda x: x.unsqueeze_(0), lambda x: x.squeeze_(0)])
def test_an_argument_takes_another_shape(change):
    def body(model, optimizer, x):
        change(x)
        optimizer.zero_grad()
        loss = loss_of(model, x.reshape(-1, 4))
        loss.backward()
        optimizer.step()
        return loss

    if change(BATCHES[0].clone()).shape == BATCHES[0].shape:
        as_eager(program(body))
    else:
        model = net()
        optimizer = sgd(model)
        was = state(model, optimizer)
        with pytest.raises(trainc.UserError, match="changes the shape"):
            trainc.train_step(lambda x: body(model, optimizer, x))(BATCHES[0].clone())
        equal(state(model, optimizer), was)


OTHER = types.ModuleType("other_of_test_step_tensors")
sys.modules[OTHER.__name__] = OTHER


@pytest.mark.parametrize("what", ["reached", "not reached"])
def test_an_optimizer_s_state_is_not_read(what):
    def build():
        model = net()
        optimizer = sgd(model)
        OTHER.weight = nn.Parameter(torch.ones(1))
        OTHER.optimizer = torch.optim.Adam([OTHER.weight])

        def step(x):
            optimizer.zero_grad()
            known = optimizer.state if what == "reached" else OTHER.optimizer.state
            loss = loss_of(model, x) * (1.0 + len(known))
            loss.backward()
            optimizer.step()
            return loss

        def before(i):
            OTHER.weight.grad = torch.ones(1)
            OTHER.optimizer.step()

        return step, model, [optimizer], before

    if what == "reached":
        refused(build, "reads `SGD.state`")
    else:
        as_eager(build)


# ---- gradients --------------------------------------------------------------------------------------------------------


def test_a_gradient_is_added_to_in_place():
    def body(model, optimizer, x):
        optimizer.zero_grad()
        y = model(x)
        y.mean().backward(retain_graph=True)
        gradient = model[0].weight.grad
        y.pow(2).mean().backward()
        optimizer.step()
        return gradient

    as_eager(program(body))


class Sum(nn.Module):
    """Parameters whose gradients are one tensor for autograd, or one that is spread out."""

    def __init__(self, view=False):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = (nn.Parameter(torch.randn(3, 4)) for _ in range(3))
        self.view = nn.Parameter(torch.randn(12)) if view else None

    def forward(self, x):
        y = x * 2 + self.a + self.b
        return (y if self.view is None else y + self.view.view(3, 4)).pow(2).sum() + self.c.sum()


def halve_one(model):
    model.a.grad.mul_(0.5)
    model.c.grad[0].mul_(3.0)


@pytest.mark.parametrize("write", [halve_one, lambda model: nn.utils.clip_grad_norm_(model.parameters(), 0.5)])
@pytest.mark.parametrize("by_hand", [False, True], ids=["backward", "grad"])
def test_gradients_are_tensors_of_their_own(write, by_hand):
    if by_hand and write is halve_one:
        pytest.skip("what torch.autograd.grad gives may be one tensor in eager, too")

    def body(model, optimizer, x):
        optimizer.zero_grad()
        loss = model(x)
        if by_hand:
            for p, gradient in zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters())), strict=True):
                p.grad = gradient.clone()
        else:
            loss.backward()
        write(model)
        optimizer.step()
        return loss

    as_eager(program(body, Sum))


def test_gradients_that_pytorch_lays_over_each_other():
    def body(model, optimizer, x, write=True):
        optimizer.zero_grad()
        loss = model(x)
        loss.backward()
        if write:
            model.a.grad.mul_(0.5)
        optimizer.step()
        return loss

    refused(program(body, lambda: Sum(view=True)), "two of which are one in PyTorch")
    as_eager(program(lambda *args: body(*args, write=False), lambda: Sum(view=True)))


def test_a_gradient_that_is_written_after_the_step():
    def body(model, optimizer, x):
        optimizer.zero_grad()
        loss = loss_of(model, x)
        loss.backward()
        optimizer.step()
        for p in model.parameters():
            p.grad.zero_()
        return loss

    as_eager(program(body))


def norm_before(model, optimizer, x, clear=lambda model, optimizer: optimizer.zero_grad(), at_the_end=False):
    norm = sum((p.grad.norm() for p in model.parameters() if p.grad is not None), torch.zeros(()))
    if not at_the_end:
        clear(model, optimizer)
    loss = loss_of(model, x)
    loss.backward()
    optimizer.step()
    if at_the_end:
        clear(model, optimizer)
    return loss, norm


def test_gradients_of_the_step_before_are_not_read():
    refused(program(norm_before), "that of the step before")
    as_eager(program(lambda *args: norm_before(*args, at_the_end=True)))


def test_gradients_from_outside_are_not_read():
    def before(i, model, optimizer):
        if i == 2:
            model[0].bias.grad = torch.ones(5)

    refused(program(lambda *args: norm_before(*args, at_the_end=True), before=before), "gradients from outside", after=2)


def none_by_hand(model, optimizer):
    for p in model.parameters():
        p.grad = None


def none_by_groups(model, optimizer):
    for p in of_groups(model, optimizer):
        p.grad = None


CLEARS = {
    "model": lambda model, optimizer: model.zero_grad(),
    "by hand": none_by_hand,
    "by groups": none_by_groups,
    "class": lambda model, optimizer: torch.optim.Optimizer.zero_grad(optimizer),
}


@pytest.mark.parametrize("at_the_end", [False, True])
@pytest.mark.parametrize("how", CLEARS)
def test_ways_to_drop_gradients(how, at_the_end):
    def body(model, optimizer, x):
        if not at_the_end:
            CLEARS[how](model, optimizer)
        loss = loss_of(model, x)
        loss.backward()
        optimizer.step()
        if at_the_end:
            CLEARS[how](model, optimizer)
        return loss

    as_eager(program(body))


def test_a_model_s_zero_grad_drops_what_no_optimizer_has():
    def build():
        model = net()
        optimizer = sgd(model[2])

        def step(x):
            model.zero_grad()
            optimizer.zero_grad()
            loss = loss_of(model, x)
            loss.backward()
            optimizer.step()
            return loss

        return step, model, [optimizer], lambda i: None

    def gradients(wrap):
        step, model, _, _ = build()
        step = wrap(step)
        return [(step(x), model[0].weight.grad.clone())[1] for x in BATCHES]

    equal(gradients(trainc.train_step), gradients(lambda step: step))


# ---- which tensors learn ------------------------------------------------------------------------------------------------


def freezing(where, flag):
    def body(model, optimizer, x):
        optimizer.zero_grad()
        if where == "first":
            model[0].weight.requires_grad_(flag)
        loss = loss_of(model, x)
        loss.backward()
        optimizer.step()
        if where == "last":
            of_groups(model, optimizer)[0].requires_grad = flag
        return loss

    return body


@pytest.mark.parametrize("flag", [False, True])
@pytest.mark.parametrize("where", ["first", "last"])
def test_the_body_freezes(where, flag):
    def make():
        model = net()
        model[0].weight.requires_grad_(not flag)
        return model

    as_eager(program(freezing(where, flag), make))


def test_two_players_take_turns():
    def build():
        torch.manual_seed(0)
        both = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 1)])
        made, judge = both
        first, second = sgd(made), sgd(judge)

        def step(x):
            judge.requires_grad_(False)
            first.zero_grad()
            fake = made(x)
            won = -judge(fake).mean()
            won.backward()
            judge.requires_grad_(True)
            second.zero_grad()
            lost = (judge(fake.detach()) - judge(x)).mean()
            lost.backward()
            first.step()
            second.step()
            return won, lost

        return step, both, [first, second], lambda i: None

    as_eager(build)


def test_an_argument_learns_from_now_on():
    def run(wrap):
        model = net()
        optimizer = sgd(model)

        def step(x):
            x.requires_grad_(True)
            optimizer.zero_grad()
            loss = loss_of(model, x)
            loss.backward()
            optimizer.step()
            return x.grad

        step = wrap(step)
        batches = [x.clone() for x in BATCHES]
        return [[step(x), x.requires_grad, x.grad] for x in batches]

    equal(run(trainc.train_step), run(lambda step: step))


# ---- after the update ---------------------------------------------------------------------------------------------------

VIEWS = {
    "detach": lambda w: w.detach(),
    "view": lambda w: w.detach().view(-1),
    "row": lambda w: w.detach()[1:].t(),
    "data": lambda w: w.data,
    "chunk": lambda w: w.detach().chunk(2)[0],
}


@pytest.mark.parametrize("view", VIEWS)
def test_memory_of_a_parameter_that_is_read_after_its_update(view):
    def body(model, optimizer, x, read=True):
        seen = VIEWS[view](model[0].weight)
        optimizer.zero_grad()
        loss = loss_of(model, x)
        loss.backward()
        optimizer.step()
        return (loss, seen.sum()) if read else (loss, seen)

    refused(program(body), "uses a parameter again after optimizer.step")
    as_eager(program(lambda *args: body(*args, read=False)))  # the caller sees what later steps write


STAYS = {
    "parameter": lambda model, x: model[0][0].weight,
    "buffer": lambda model, x: model[1].running_mean,
    "argument": lambda model, x: x,
    "row of an argument": lambda model, x: x[1],
    "state_dict": lambda model, x: model.state_dict(),
}


@pytest.mark.parametrize("what", STAYS)
def test_results_that_stay(what):
    def run(wrap):
        model = nn.Sequential(net(), nn.BatchNorm1d(2))
        optimizer = sgd(model)

        def step(x):
            x.mul_(2.0)
            optimizer.zero_grad()
            loss = loss_of(model, x)
            loss.backward()
            optimizer.step()
            return loss, STAYS[what](model, x)

        step, found, seen = wrap(step), [], []
        for x in BATCHES:
            x = x.clone()
            found.append((step(x), x))
            seen.append(found[-1][0][1] is STAYS[what](model, x))
        for (_, result), x in found:
            if isinstance(result, torch.Tensor):
                with torch.no_grad():
                    result.add_(1.0)
            seen += [plain(result), plain(x), state(model, optimizer)]
        return seen

    equal(run(trainc.train_step), run(lambda step: step))


TOGETHER = {
    "a result and its row": lambda out, loss: (out, out[1]),
    "a row and what it is of": lambda out, loss: (out[1:].t(), out),
    "the loss twice": lambda out, loss: (loss, loss.detach()),
    "in a dictionary": lambda out, loss: {"all": out.view(-1), "first": out[:, 0]},
    "rows apart": lambda out, loss: (out[0], out[1]),
}


@pytest.mark.parametrize("what", TOGETHER)
def test_results_that_lie_in_one_another(what):
    """Who writes into one writes into the other."""

    def run(wrap):
        model = net()
        optimizer = sgd(model)

        def step(x):
            optimizer.zero_grad()
            out = model(x)
            loss = out.pow(2).sum()
            loss.backward()
            optimizer.step()
            return TOGETHER[what](out.detach(), loss.detach())

        step, seen = wrap(step), []
        for x in BATCHES:
            result = step(x)
            results = list(result.values()) if isinstance(result, dict) else list(result)
            for i, each in enumerate(results):
                each.add_(i + 1.0)
                seen += [r.clone() for r in results]
            seen += [torch.tensor(r.stride()) for r in results]
        return seen

    equal(run(trainc.train_step), run(lambda step: step))


# ---- what steps beside the optimizers that are known ----------------------------------------------------------------------


def stepping(second):
    """A step with two optimizers; `second(owner, optimizer)` gives what steps the second."""

    def build():
        model = net()
        first, other = sgd(model[0]), sgd(model[2])
        step_other = second(model, other)

        def step(x):
            first.zero_grad()
            for p in model[2].parameters():
                p.grad = None
            loss = loss_of(model, x)
            loss.backward()
            first.step()
            step_other()
            return loss

        return step, model, [first, other], lambda i: None

    return build


def of_module(model, optimizer):
    OTHER.optimizer = optimizer
    return lambda: OTHER.optimizer.step()


def scheduled(model, optimizer):
    OTHER.scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    return lambda: (optimizer.step(), OTHER.scheduler.step())


STEPS = {
    "kept": lambda model, optimizer: optimizer.step,
    "class": lambda model, optimizer: lambda: torch.optim.SGD.step(optimizer),
    "module": of_module,
    "compiled": lambda model, optimizer: trainc.compile(model, optimizer)[1].step,
    "scheduler": scheduled,
    "kept scheduler": lambda model, optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5).step,
}


@pytest.mark.parametrize("how", STEPS)
def test_steps_that_the_trace_would_lose(how):
    refused(stepping(STEPS[how]), "steps an? .* that the trace does not know")


@pytest.mark.parametrize("what", ["optimizer", "scheduler"])
def test_another_takes_its_place(what):
    def build():
        model = net()
        trainer = types.SimpleNamespace(first=sgd(model[0]), second=sgd(model[2]))
        trainer.scheduler = torch.optim.lr_scheduler.ExponentialLR(trainer.first, 0.5)

        def step(x):
            trainer.first.zero_grad()
            trainer.second.zero_grad()
            loss = loss_of(model, x)
            loss.backward()
            trainer.first.step()
            trainer.second.step()
            trainer.scheduler.step()
            return loss

        def before(i):
            if i == 2 and what == "optimizer":
                trainer.second = sgd(model[2], lr=0.5)
            elif i == 2:
                trainer.scheduler = torch.optim.lr_scheduler.ExponentialLR(trainer.first, 0.9)

        return step, model, [trainer.first], before

    refused(build, "steps an? .* that the trace does not know", after=2)


def test_gradients_are_left_off():
    def body(model, optimizer, x):
        optimizer.zero_grad()
        loss = loss_of(model, x)
        loss.backward()
        optimizer.step()
        torch.set_grad_enabled(False)
        return loss

    refused(program(body), "whether gradients are on")
    assert torch.is_grad_enabled()


# ---- an optimizer's state -------------------------------------------------------------------------------------------------


def buffers(model, optimizer):
    return optimizer.state[model[0].weight], optimizer.state[model[2].weight]


def of_another(model, optimizer):
    first, _ = buffers(model, optimizer)
    first["momentum_buffer"] = model[0].weight.detach()


def in_double(model, optimizer):
    first, _ = buffers(model, optimizer)
    first["momentum_buffer"] = first["momentum_buffer"].double()


def smaller(model, optimizer):
    buffers(model, optimizer)[0]["momentum_buffer"] = torch.ones(1, 1)


def transposed(model, optimizer):
    first, _ = buffers(model, optimizer)
    first["momentum_buffer"] = first["momentum_buffer"].t().contiguous().t()


@pytest.mark.parametrize(
    "change, words",
    [(of_another, "shares memory"), (in_double, "another type or shape"), (smaller, "another type or shape"), (transposed, None)],
)
def test_state_that_the_plan_was_not_made_for(change, words):
    def body(model, optimizer, x):
        optimizer.zero_grad()
        loss = loss_of(model, x)
        loss.backward()
        optimizer.step()
        return loss

    def before(i, model, optimizer):
        if i == 2:
            change(model, optimizer)

    build = program(body, before=before)
    if words is None:
        as_eager(build)
    else:
        refused(build, words, after=2)


# ---- what is made in the step and returned ----------------------------------------------------------------------------------


class Notes:
    def __init__(self, names):
        self.names = names


class Slotted:
    __slots__ = ("names", "loss")


def slotted(loss):
    made = Slotted()
    made.names, made.loss = ["a"], loss
    return made


MADE = {
    "list": lambda loss: ["a"],
    "object": lambda loss: Notes(["a"]),
    "slots": slotted,
    "set": lambda loss: {"a"},
    "deque": lambda loss: collections.deque(["a"]),
    "array": lambda loss: numpy.zeros(2),
    "bytes": lambda loss: bytearray(b"a"),
}
WRITES = {
    "object": lambda made: made.names.append("b"),
    "slots": lambda made: made.names.append("b"),
    "set": lambda made: made.add("b"),
    "array": lambda made: made.fill(3.0),
    "bytes": lambda made: made.append(1),
}
LOOKS = {"object": lambda made: made.names, "slots": lambda made: [made.names, made.loss], "array": lambda made: made.tolist()}


@pytest.mark.parametrize("door", ["compile", "train_step"])
@pytest.mark.parametrize("kind", MADE)
def test_what_a_call_makes_is_its_own(kind, door):
    def run(wrap):
        model = net()
        optimizer = sgd(model)

        def step(x):
            optimizer.zero_grad()
            loss = loss_of(model, x)
            loss.backward()
            optimizer.step()
            return MADE[kind](loss)

        class Net(nn.Module):
            def forward(self, x):
                return MADE[kind](x.sum())

        call = wrap(step, Net())
        seen = []
        for x in BATCHES:
            made = call(x)
            seen.append(plain(LOOKS.get(kind, list)(made)))
            WRITES.get(kind, lambda made: made.append("b"))(made)
        return seen

    if door == "train_step":
        equal(run(lambda step, model: trainc.train_step(step)), run(lambda step, model: step))
    else:
        equal(run(lambda step, model: trainc.compile(model)), run(lambda step, model: model))


UNIQUE = {
    "iterator": lambda loss: iter([1, 2]),
    "function": lambda loss: lambda: loss,
    "generator": lambda loss: (i for i in range(2)),
    "module": lambda loss: nn.Linear(2, 2),
}


@pytest.mark.parametrize("make", UNIQUE.values(), ids=UNIQUE)
def test_what_no_later_call_could_make(make):
    def body(model, optimizer, x):
        optimizer.zero_grad()
        loss = loss_of(model, x)
        loss.backward()
        optimizer.step()
        return make(loss)

    refused(program(body), "the result holds|reads the value|the step|nn.Linear|draws")


class Trainer:
    def __init__(self, wrap):
        self.model = net()
        self.optimizer = sgd(self.model)
        self.step = wrap(self._step)

    def _step(self, x):
        self.optimizer.zero_grad()
        loss = loss_of(self.model, x)
        loss.backward()
        self.optimizer.step()
        return loss


COPIES = {"deepcopy": copy.deepcopy, "pickle": lambda trainer: pickle.loads(pickle.dumps(trainer))}


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_a_copy_of_a_trainer_is_of_its_own(copied):
    def run(wrap):
        trainer = Trainer(wrap)
        trainer.step(BATCHES[0])
        other = copied(trainer)
        seen = []
        for x in BATCHES:
            seen += [trainer.step(x), state(trainer.model, trainer.optimizer), state(other.model, other.optimizer)]
        for x in BATCHES:
            seen += [other.step(x * 2), state(trainer.model, trainer.optimizer), state(other.model, other.optimizer)]
        return plain(seen)

    equal(run(trainc.train_step), run(lambda step: step))
