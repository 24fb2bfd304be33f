"""trainc.compile(fuse_step=True): the bits of a plain step, and an ordinary step wherever somebody looks at a gradient before."""

import warnings

import pytest
import torch
from conftest import assert_same
from torch import nn

import trainc
from trainc.base import records
from trainc.torch.run.deferred import DeferredTensor

OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True, weight_decay=0.1),
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-2),
    "momentum": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, nesterov=True),
    "groups": lambda p: torch.optim.AdamW([{"params": [p[0]], "lr": 1e-3}, {"params": p[1:], "weight_decay": 0.0}], lr=1e-2),
}


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(17, 33), nn.GELU(), nn.Dropout(0.2), nn.LayerNorm(33), nn.Linear(33, 5))


class Pair:
    """A model compiled with fuse_step=True, and one without; `run` takes both through the same loop."""

    def __init__(self, make=net, optimizer=OPTIMIZERS["adamw"]):
        self.models = [make(), make()]
        self.optimizers = [optimizer(list(m.parameters())) for m in self.models]
        for fuse, (m, o) in enumerate(zip(self.models, self.optimizers, strict=True)):
            trainc.compile(m, o, fuse_step=bool(fuse))

    def run(self, body, steps=3):
        for step in range(steps):
            found = []
            for model, optimizer in zip(self.models, self.optimizers, strict=True):
                torch.manual_seed(step)
                found.append(body(model, optimizer, torch.randn(8, 17)))
            assert_same(found[1], found[0], 0)
        plain, fused = self.models
        assert_same(fused.state_dict(), plain.state_dict(), 0)
        states = [list(o.state_dict()["state"].values()) for o in self.optimizers]
        assert_same(states[1], states[0], 0)
        return self

    @property
    def fused(self) -> bool:
        """Whether a backward ran within a step."""
        return any(record.fused is not None for record in records.of(self.models[1]))

    @property
    def apart(self) -> bool:
        """Whether a backward ran before a step."""
        return any(record.backward or record.retaining for record in records.of(self.models[1]))


def stepped(optimizer, loss, **found):
    """The end of a loop's body, and what it found."""
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": loss.detach(), **found}


def plain_loop(model, optimizer, x):
    loss = model(x).square().mean()
    loss.backward()
    return stepped(optimizer, loss)


@pytest.fixture(autouse=True)
def _strict(strict):
    pass


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_it_gives_the_bits_of_a_step_of_its_own(name):
    pair = Pair(optimizer=OPTIMIZERS[name]).run(plain_loop, steps=5)
    assert pair.fused and not pair.apart


def test_gradients_wait_until_the_step_and_are_gone_after_it():
    model = net()
    model, optimizer = trainc.compile(model, torch.optim.AdamW(model.parameters()), fuse_step=True)
    model(torch.randn(8, 17)).sum().backward()
    assert all(type(p.grad) is DeferredTensor and p.grad.shape == p.shape for p in model.parameters())
    optimizer.step()
    with pytest.raises(trainc.UserError, match="consumed by optimizer.step"):
        model[0].weight.grad.sum()
    with pytest.raises(trainc.UserError, match="zero_grad"):  # they cannot be added to
        model(torch.randn(8, 17)).sum().backward()
    optimizer.zero_grad(set_to_none=False)
    assert_same({"grad": model[0].weight.grad + 0}, {"grad": torch.zeros(33, 17)}, 0)
    optimizer.zero_grad()
    model(torch.randn(8, 17)).sum().backward()
    optimizer.step()


def clipped(model, optimizer, x):
    loss = model(x).square().mean()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    return stepped(optimizer, loss, norm=norm)


def accumulated(model, optimizer, x):
    for part in x.split(4):
        loss = model(part).square().mean()
        loss.backward()
    return stepped(optimizer, loss)


def two_forwards(model, optimizer, x):
    loss = model(x).square().mean() + model(x + 1).sum()
    loss.backward()
    return stepped(optimizer, loss)


def penalized(model, optimizer, x):
    loss = model(x).square().mean() + model[0].weight.square().sum()
    loss.backward()
    return stepped(optimizer, loss)


def retained(model, optimizer, x):
    loss = model(x).square().mean()
    loss.backward(retain_graph=True)
    loss.backward()
    return stepped(optimizer, loss)


def some_dropped(model, optimizer, x):
    loss = model(x).square().mean()
    loss.backward()
    model[0].weight.grad = None
    return stepped(optimizer, loss)


def scaled_by_hand(model, optimizer, x):
    loss = model(x).square().mean()
    loss.backward()
    for p in model.parameters():
        p.grad.mul_(0.5)
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    return {"loss": loss.detach()}


def asked_for(model, optimizer, x):
    loss = model(x).square().mean()
    found = torch.autograd.grad(loss, list(model.parameters()))
    for p, gradient in zip(model.parameters(), found, strict=True):
        p.grad = gradient
    return stepped(optimizer, loss)


def of_one(model, optimizer, x):
    loss = model(x).square().mean()
    loss.backward(inputs=[model[0].weight])
    return stepped(optimizer, loss)


@pytest.mark.parametrize(
    "body", [clipped, accumulated, two_forwards, penalized, retained, some_dropped, scaled_by_hand, asked_for, of_one]
)
def test_who_looks_at_a_gradient_has_it(body):
    assert Pair().run(body).apart


def test_an_output_that_is_held_can_be_read_after_the_step():
    class Wide(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.out = nn.Linear(17, 5000)

        def forward(self, x):
            logits = self.out(x)
            return logits.exp().sum(1).log().mean(), logits

    def body(model, optimizer, x):
        loss, logits = model(x.repeat(16, 1))
        loss.backward()
        return stepped(optimizer, loss) | {"logits": logits + 0}

    pair = Pair(Wide).run(body)
    assert pair.fused and not pair.apart
    assert records.of(pair.models[1])[0].deferred is not None


def test_a_closure_is_fused():
    def body(model, optimizer, x):
        def closure():
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            return loss

        return {"loss": optimizer.step(closure).detach()}

    pair = Pair().run(body)
    assert pair.fused and not pair.apart


def test_hooks_see_gradients():
    seen = {0: [], 1: []}
    pair = Pair()
    for i, model in enumerate(pair.models):
        model[0].weight.register_post_accumulate_grad_hook(lambda p, i=i: seen[i].append(p.grad.clone()))
        model[4].weight.register_hook(lambda grad: 2 * grad)
    pair.run(plain_loop)
    assert not pair.fused
    assert_same(dict(enumerate(seen[1])), dict(enumerate(seen[0])), 0)


def test_parameters_of_nobody_keep_their_gradients():
    def first_alone(parameters):
        return torch.optim.AdamW(parameters[:1], lr=1e-2)

    def body(model, optimizer, x):
        out = plain_loop(model, optimizer, x)
        out |= {"grad": model[4].weight.grad.clone()}
        model.zero_grad()
        return out

    assert not Pair(optimizer=first_alone).run(body).fused


def test_a_scheduler_compiles_nothing_anew():
    pair = Pair()
    schedulers = [torch.optim.lr_scheduler.StepLR(o, 1, 0.9) for o in pair.optimizers]

    def body(model, optimizer, x):
        out = plain_loop(model, optimizer, x)
        schedulers[pair.optimizers.index(optimizer)].step()
        return out

    pair.run(body, steps=2)
    (record,) = records.of(pair.models[1])
    plan = record.fused
    pair.run(body, steps=3)
    assert record.fused is plan


def test_parameters_that_are_replaced():
    pair = Pair().run(plain_loop, steps=2)
    for model, optimizer in zip(pair.models, pair.optimizers, strict=True):
        old, model[0].weight = model[0].weight, nn.Parameter(model[0].weight.detach().clone())
        del optimizer.state[old]
        optimizer.param_groups[0]["params"][0] = model[0].weight
    assert not pair.run(plain_loop, steps=2).apart


def test_batches_of_several_sizes():
    def body(model, optimizer, x):
        losses = []
        for rows in (8, 5, 3, 8):
            loss = model(x[:rows]).square().mean()
            loss.backward()
            losses.append(stepped(optimizer, loss)["loss"])
        return {"loss": torch.stack(losses)}

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pair = Pair().run(body)
    assert pair.fused and not pair.apart


def test_a_weight_changed_before_the_step_is_told():
    pair = Pair()
    model, optimizer = pair.models[1], pair.optimizers[1]
    model(torch.randn(8, 17)).square().mean().backward()
    with torch.no_grad():
        model[4].weight.mul_(0.5)
    with pytest.raises(trainc.UserError, match="changed between backward"):
        optimizer.step()


@pytest.mark.parametrize("write", ["data", "numpy"])
@pytest.mark.parametrize("size", [1, 7, 64, 301])
def test_one_element_changed_without_a_version_is_told(size, write):
    model = nn.Sequential(nn.Linear(size, 3), nn.Tanh(), nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainc.compile(model, optimizer, fuse_step=True)
    for place in (0, size // 2, size - 1):
        x = torch.randn(5, size)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        changed = model[2].weight if place == 0 else x  # the backward reads both; of the first layer's weight it reads nothing
        element = changed.data.view(-1)[place : place + 1]
        before = element.clone()
        if write == "data":
            element.add_(1)
        else:
            element.numpy()[:] += 1
        with pytest.raises(trainc.UserError, match="changed between backward"):
            optimizer.step()
        element.copy_(before)
        optimizer.step()


def test_shared_memory_is_not_fused():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.a = nn.Linear(17, 17)
            self.register_buffer("view", self.a.weight.data.view(-1), persistent=False)

        def forward(self, x):
            return self.a(x).relu() @ self.view.view(17, 17)

    assert not Pair(Tied).run(plain_loop).fused


def test_a_failing_plan_leaves_an_ordinary_step(monkeypatch):
    monkeypatch.setattr(trainc.config, "fallback", True)
    pair = Pair()
    from trainc.base.plans import JointPlans

    def fails(*_):
        raise RuntimeError("made to fail")

    monkeypatch.setattr(JointPlans, "backward_step", fails)
    with pytest.warns(UserWarning, match="made to fail"):
        pair.run(plain_loop, steps=1)
    assert pair.apart


def test_what_it_wants():
    model = net()
    with pytest.raises(trainc.UserError, match="fuse_step=True wants the optimizer, too"):
        trainc.compile(model, fuse_step=True)
    with pytest.raises(trainc.UserError, match="AdamW, Adam.* SGD.*, not SparseAdam"):
        trainc.compile(model, torch.optim.SparseAdam(model.parameters()), fuse_step=True)


def test_memory_is_told_without_gradients():
    x = torch.randn(8, 17)
    pair = Pair()
    plain, fused = (trainc.explain(model, batch=x).memory for model in pair.models)
    assert plain.gradients > 0 and fused.gradients == 0
    assert fused.model == plain.model and fused.optimizer == plain.optimizer


def swapped_gradients(model, optimizer):
    first, second = model[0].weight, model[2].weight
    first.grad, second.grad = second.grad, first.grad


def moved_gradient(model, optimizer):
    model[0].weight.grad = model[2].weight.grad


def state_of_a_weight(model, optimizer):
    optimizer.state[model[0].weight]["momentum_buffer"] = model[0].weight.detach()


def one_state_for_two(model, optimizer):
    optimizer.state[model[0].weight]["momentum_buffer"] = optimizer.state[model[2].weight]["momentum_buffer"]


def state_in_double(model, optimizer):
    state = optimizer.state[model[0].weight]
    state["momentum_buffer"] = state["momentum_buffer"].double()


@pytest.mark.parametrize(
    "change", [swapped_gradients, moved_gradient, state_of_a_weight, one_state_for_two, state_in_double]
)
def test_what_changes_between_backward_and_step(change):
    def run(wrap):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        wrap(model, optimizer)
        found = []
        for i in range(4):
            optimizer.zero_grad()
            model(torch.linspace(-1, 1, 12).view(3, 4) + i).pow(2).sum().backward()
            if i == 2:
                change(model, optimizer)
            optimizer.step()
            found += [p.detach().clone() for p in model.parameters()]
        return found

    assert_same(run(lambda *both: trainc.compile(*both, fuse_step=True)), run(lambda *both: None))
