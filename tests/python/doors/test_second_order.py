"""Gradients of gradients: a plan has none, so PyTorch does the call again. Numbers, None and random numbers are eager's."""

import copy

import pytest
import torch
from conftest import DOORS, assert_same
from torch import nn
from torch.func import functional_call

import trainc
from trainc.base import messages, records

pytestmark = pytest.mark.filterwarnings("ignore::trainc.base.messages.RecompileWarning")


class Doubled(torch.autograd.Function):
    """Its derivative is another than that of what its forward does."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.round()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * torch.cos(x)


class Own(nn.Linear):
    def forward(self, x):
        with torch.no_grad():
            scale = x.square().mean()
        return Doubled.apply(super().forward(x)) + super().forward(x) * scale + super().forward(x).detach().tanh()


MODELS = {
    "dropout": lambda: nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.Dropout(0.3), nn.Linear(8, 1)),
    "batch norm": lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1)),
    "layer norm": lambda: nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 1)),
    "a Function, no_grad, detach": lambda: nn.Sequential(Own(4, 8), nn.Sigmoid(), nn.Linear(8, 1)),
    "spectral norm": lambda: nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 8)), nn.Tanh(), nn.Linear(8, 1)),
    "a view": lambda: nn.Sequential(nn.Linear(4, 8), nn.ELU(), nn.Linear(8, 1), nn.Flatten(0)),
}  # fmt: skip


def pair(make):
    torch.manual_seed(0)
    plain = make()
    return plain, copy.deepcopy(plain)


def states(model):
    return [*model.parameters(), *model.buffers(), torch.get_rng_state()]


def same(got, wanted, tolerance=1e-5):
    for a, b in zip(got, wanted, strict=True):
        assert_same(a, b, tolerance)


def wgan(model, optimizer, steps=5):
    """A critic with a gradient penalty. What it gives: losses, gradients, and what is left."""
    torch.manual_seed(1)
    found = []
    for _ in range(steps):
        real, fake = torch.randn(6, 4), torch.randn(6, 4)
        mixed = torch.lerp(real, fake, torch.rand(6, 1)).requires_grad_()
        loss = model(fake).mean() - model(real).mean()  # before: batch norm's second derivative reads its statistics
        (slope,) = torch.autograd.grad(model(mixed).sum(), mixed, create_graph=True)
        loss = loss + 10 * (slope.norm(2, 1) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        found += [loss.detach(), slope.detach(), *[p.grad.clone() for p in model.parameters()]]
        optimizer.step()
    return [*found, *states(model)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind, door", [*[(kind, "compile") for kind in MODELS], ("batch norm", "backend")])
def test_a_gradient_penalty(core, kind, door):
    plain, ours = pair(MODELS[kind])
    wanted = wgan(plain, torch.optim.SGD(plain.parameters(), 1e-2, momentum=0.9))
    optimizer = torch.optim.SGD(ours.parameters(), 1e-2, momentum=0.9)
    if door == "compile":
        trainc.compile(ours, optimizer)
        got = wgan(ours, optimizer)
    else:
        got = wgan(torch.compile(ours, backend="trainc"), optimizer)
    same(got, wanted, 1e-3 if kind == "batch norm" else 1e-5)  # in f64 its numbers are the same to 1e-12


# Through torch.compile: Dynamo's graph of an autograd.Function has another second derivative than the program, in any backend;
# and AOTAutograd's own node has none.
REFUSED = {"a Function, no_grad, detach": "no gradient of the gradient of this region", "spectral norm": "double backward"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", REFUSED)
def test_graphs_of_dynamo_without_a_second_derivative_are_refused(core, kind):
    _, ours = pair(MODELS[kind])
    with pytest.raises((trainc.UserError, RuntimeError), match=REFUSED[kind]):
        wgan(torch.compile(ours, backend="trainc"), torch.optim.Adam(ours.parameters()))


def test_it_is_said_once_and_other_calls_stay_compiled(core):
    _, ours = pair(MODELS["dropout"])
    optimizer = torch.optim.Adam(ours.parameters())
    trainc.compile(ours, optimizer)
    with pytest.warns(messages.TraincWarning) as said:
        wgan(ours, optimizer)
    said = [str(each.message) for each in said if isinstance(each.message, messages.TraincWarning)]
    assert said == ["trainc: Sequential runs in PyTorch: gradients of its gradients are taken (create_graph=True)"]
    routes = [(record.route, record.signature) for record in records.of(ours)]
    assert [route for route, _ in routes] == ["compiled", "compiled", "eager"]


def maml(model, steps=3):
    torch.manual_seed(1)
    optimizer, found = torch.optim.SGD(model.parameters(), 0.1), []
    for _ in range(steps):
        x, y = torch.randn(8, 4), torch.randn(8, 1)
        names, weights = zip(*model.named_parameters(), strict=True)
        inner = (model(x) - y).square().mean()
        gradients = torch.autograd.grad(inner, weights, create_graph=True)
        fast = {name: w - 0.1 * g for name, w, g in zip(names, weights, gradients, strict=True)}
        again = (functional_call(model, fast, (x,)) - y).square().mean()
        second = torch.autograd.grad(again, tuple(fast.values()), create_graph=True)
        fast = {name: w - 0.1 * g for (name, w), g in zip(fast.items(), second, strict=True)}
        outer = (functional_call(model, fast, (x,)) - y).square().mean()
        optimizer.zero_grad()
        outer.backward()
        found += [outer.detach(), *[p.grad.clone() for p in model.parameters()]]
        optimizer.step()
    return [*found, *states(model)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["dropout", "layer norm", "a Function, no_grad, detach"])
def test_maml(core, kind):
    plain, ours = pair(MODELS[kind])
    same(maml(trainc.compile(ours)), maml(plain))


def products(model, x, hook=None):
    """Hessian-vector products of a model that has been trained for a while, which goes on."""
    torch.manual_seed(1)
    weights, found = list(model.parameters()), []
    handle = weights[0].register_hook(hook) if hook else None
    optimizer = torch.optim.SGD(weights, 0.01)
    for i in range(8):
        loss = model(x).square().mean()
        if i % 4 != 3:
            optimizer.zero_grad()
            loss.backward()
            found += [loss.detach(), *[p.grad.clone() for p in weights]]
            optimizer.step()
            continue
        gradients = torch.autograd.grad(loss, weights, create_graph=True)
        vectors = [torch.randn_like(g) for g in gradients]
        dot = sum((g * v).sum() for g, v in zip(gradients, vectors, strict=True))
        found += torch.autograd.grad(dot, weights, retain_graph=True)
        third = torch.autograd.grad(dot, weights[0], create_graph=True)[0].square().sum()
        found += [None if g is None else g for g in torch.autograd.grad(third, weights, allow_unused=True)]
    if handle is not None:
        handle.remove()
    return [*found, *states(model)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("hook", [None, lambda grad: 2 * grad])
@pytest.mark.parametrize("kind", ["dropout", "batch norm", "spectral norm"])
def test_products_with_the_hessian(core, kind, hook):
    plain, ours = pair(MODELS[kind])
    x = torch.randn(6, 4)
    same(products(trainc.compile(ours), x, hook), products(plain, x, hook), 1e-3)  # the third derivative's rounding
    assert {record.route for record in records.of(ours)} == {"compiled"}  # most of its backwards are a plan's


@pytest.mark.filterwarnings("ignore")
def test_autocast_default_types_and_unused_parameters(engine):
    """The call is done again as it was done, wherever its gradient is asked for; a parameter that it does not use has None."""

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.unused = nn.Linear(4, 4), nn.Linear(4, 1), nn.Parameter(torch.ones(3))

        def forward(self, x, scale):
            return self.b(torch.tanh(self.a(x))).float() * scale, self.unused * 2

    def run(model):
        torch.manual_seed(1)
        x = torch.randn(5, 4, requires_grad=True)
        with torch.autocast("cpu", torch.bfloat16):
            out, _ = model(x, 2.0)
        made = torch.autograd.grad(out.square().sum(), [x, *model.parameters()], create_graph=True, allow_unused=True)
        again = torch.autograd.grad(made[0].square().sum(), [x, *model.parameters()], allow_unused=True)
        return [*made, *again]

    plain, ours = pair(Two)
    wanted, got = run(plain), run(trainc.compile(ours))
    assert [g is None for g in got] == [g is None for g in wanted]
    for a, b in zip(got, wanted, strict=True):
        assert_same(a, b, 2e-2)


@pytest.mark.filterwarnings("ignore")
def test_a_batch_of_gradients(engine):
    plain, ours = pair(MODELS["layer norm"])
    trainc.compile(ours)
    x = torch.randn(3, 4)
    found = []
    for model in (ours, plain):
        given = x.clone().requires_grad_()
        out = model(given).reshape(-1)
        found.append(torch.autograd.grad(out, given, torch.eye(3), is_grads_batched=True)[0])
        found.append(torch.autograd.functional.jvp(model, x, torch.ones_like(x))[1])
    same(found[:2], found[2:])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("door", DOORS)
def test_a_batch_of_gradients_of_what_draws(engine, door):
    """Eager draws in the call, before the function that is mapped over the batch, which may not."""

    class Dropped(nn.Sequential):
        def forward(self, x):
            return super().forward(x).flatten()

    found = []
    for way in (DOORS[door], lambda model: model):
        torch.manual_seed(3)
        model = way(Dropped(nn.Linear(4, 6), nn.Dropout(0.5), nn.Tanh()))
        x, before = torch.randn(2, 4), torch.get_rng_state()
        given = x.clone().requires_grad_()
        found.append(torch.autograd.grad(model(given), given, torch.eye(12), is_grads_batched=True)[0])
        torch.set_rng_state(before)
        found.append(torch.autograd.functional.jacobian(model, x, vectorize=True))
        found.append(torch.rand(2))  # the generator goes on as eager's
    same(found[:3], found[3:])


def test_what_changed_since_the_call_is_said(core):
    class Scaled(nn.Linear):
        scale = 2.0

        def forward(self, x):
            return torch.tanh(super().forward(x) * self.scale)

    model, x = trainc.compile(Scaled(4, 4)), torch.randn(3, 4, requires_grad=True)
    model(x).sum().backward()
    changes = {
        "what forward reads has changed": lambda: setattr(model, "scale", 3.0),
        "has changed since its call": model.eval,
        "was written to": lambda: model.bias.detach().add_(1),
    }
    for told, change in changes.items():
        out = model(x).sum()
        change()
        with pytest.raises(trainc.UserError, match=told):
            torch.autograd.grad(out, x, create_graph=True)


class Read(nn.Sequential):
    """What comes out depends on what a statistic was: it must be kept."""

    def forward(self, x):
        before = self[1].running_mean.clone()
        return super().forward(x) * before.square().sum()


@pytest.mark.parametrize("kind", [nn.Sequential, Read])
def test_statistics_move_on_before_the_second_gradient(core, kind):
    plain, model = pair(lambda: kind(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1)))
    plain[1].running_mean.fill_(0.5), model[1].running_mean.fill_(0.5)
    inputs, found = [torch.randn(6, 4), torch.randn(6, 4)], []
    for each in (plain, trainc.compile(model)):
        each(inputs[0]).sum().backward()
        first, x = each(inputs[0]).sum(), inputs[1].clone().requires_grad_()
        second = each(x).sum()
        each(inputs[0])  # statistics are others now
        (slope,) = torch.autograd.grad(second, x, create_graph=True)
        (first + slope.square().sum()).backward()
        found.append([slope.detach(), *[p.grad for p in each.parameters()], *each.buffers()])
    same(*found)


def test_without_fallback_it_is_an_error(core, strict):
    model, x = trainc.compile(nn.Linear(4, 4)), torch.randn(3, 4, requires_grad=True)
    with pytest.raises(trainc.UserError, match="neither the gradient of a gradient"):
        torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
