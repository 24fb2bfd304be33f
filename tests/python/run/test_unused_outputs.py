"""Parameters that the loss does not lead to have no gradient, in eager and here, so that no optimizer decays or moves them:
models with several outputs, with every choice of those that the loss uses."""

import copy
import itertools

import pytest
import torch
from conftest import DOORS, Calls, assert_same
from torch import nn

import trainc
from trainc.base import records


class Heads(nn.Module):
    """A trunk with three heads, one of them over another one's result, a module that is not called, and a frozen one."""

    outputs = 3

    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Tanh())
        self.a, self.b, self.c = nn.Linear(6, 3), nn.Linear(6, 2), nn.Linear(2, 1)
        self.uncalled, self.frozen = nn.Linear(2, 2), nn.Linear(6, 6).requires_grad_(False)

    def forward(self, x):
        h = self.frozen(self.trunk(x))
        b = self.b(h)
        return self.a(h).sum(), b.square().mean(), self.c(b).sum()


class Pooler(nn.Module):
    """Hugging Face's: hidden states and what a pooler makes of them; the embedding is tied to a head of its own."""

    outputs = 3

    def __init__(self):
        super().__init__()
        self.embed, self.pooler, self.bias = nn.Embedding(7, 4), nn.Linear(4, 4), nn.Parameter(torch.zeros(7))

    def forward(self, x):
        h = self.embed(x.argmax(-1))
        return h.square().sum(), torch.tanh(self.pooler(h)).sum(), (h @ self.embed.weight.t() + self.bias).logsumexp(-1).sum()


class Experts(nn.Module):
    """Each expert has an output of its own, and a loss of the router beside them."""

    outputs = 4

    def __init__(self):
        super().__init__()
        self.router, self.experts = nn.Linear(4, 3), nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        weights = self.router(x).softmax(-1)
        mixed = [(weights[:, i, None] * expert(x)).sum() for i, expert in enumerate(self.experts)]
        return *mixed, weights.square().mean()


class Zeros(nn.Module):
    """Gradients that are zeros: there is a way to these parameters, and nothing comes along it."""

    outputs = 2

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return (self.a(x).sign() + 0 * self.b(x)).sum(), self.c(x).round().sum() + self.b(x).sum()


class TwoWays(torch.autograd.Function):
    """A function of two, each gradient of which is of one result alone: eager hands it zeros for the one that is not used."""

    @staticmethod
    def forward(ctx, a, b):
        return a * 2, b * 3

    @staticmethod
    def backward(ctx, da, db):
        return da * 2, db * 3


class Functions(nn.Module):
    outputs = 3

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        a, b = TwoWays.apply(self.a(x), self.b(x))
        return a.sum(), b.square().sum(), self.c(x).sum()


class Written(nn.Module):
    """With outputs that are an input, a view of another output, and a number; and a buffer that forward writes."""

    outputs = 3

    def __init__(self):
        super().__init__()
        # a bias before the norm, or a plain sum after it, has gradient zero: Adam makes steps of its rounding
        self.a, self.b, self.norm = nn.Linear(4, 4, bias=False), nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x):
        h = self.norm(self.a(x))
        return h[0].sum(), (h * x).square().sum(), self.b(x).sum(), h.detach(), 3


MODELS = {
    "heads": Heads, "pooler": Pooler, "experts": Experts, "zeros": Zeros, "functions": Functions, "written": Written,
}  # fmt: skip


def choices(count):
    """Every choice of outputs, the whole set in the middle: what is compiled for one is not what the next one wants."""
    sets = [c for n in range(1, count + 1) for c in itertools.combinations(range(count), n)]
    return [*sets[::2], *sets[1::2], sets[0]]


def missing(model):
    return {name for name, p in model.named_parameters() if p.grad is None}


def train(model, call, optimizer, x):
    """Weights, and which gradients there were none of, for each choice of outputs."""
    found, outputs = [], model.outputs
    for used in choices(outputs):
        optimizer.zero_grad()
        results = call(x)
        sum(results[i] for i in used).backward()
        found.append(missing(model))
        optimizer.step()
    return found


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("door", DOORS)
@torch._dynamo.config.patch(recompile_limit=64)
def test_parameters_without_a_gradient(engine, strict, name, door):
    plain = MODELS[name]()
    ours = copy.deepcopy(plain)
    x = torch.randn(5, 4)
    make = lambda m: torch.optim.AdamW(m.parameters(), lr=1e-2, weight_decay=0.5)  # noqa: E731
    wanted = train(plain, plain, make(plain), x)
    got = train(ours, DOORS[door](ours), make(ours), x)
    assert any(wanted) and got == wanted
    assert_same(dict(ours.state_dict()), dict(plain.state_dict()), 2e-4)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD])
def test_with_the_optimizers_step(engine, strict, name, optimizer):
    """trainc.compile(model, optimizer), and the same with the step in one plan with the backward."""
    plain = MODELS[name]()
    x = torch.randn(5, 4)
    make = lambda m: optimizer(m.parameters(), lr=1e-2, weight_decay=0.5)  # noqa: E731
    others = [copy.deepcopy(plain) for _ in range(2)]
    wanted = train(plain, plain, make(plain), x)
    for fuse, ours in enumerate(others):
        ours, stepped = trainc.compile(ours, make(ours), fuse_step=bool(fuse))
        assert train(ours, ours, stepped, x) == wanted
        assert_same(dict(ours.state_dict()), dict(plain.state_dict()), 2e-4)


@pytest.mark.parametrize("name", MODELS)
def test_in_a_step(engine, strict, name):
    plain = MODELS[name]()
    for used in [(0,), (1,), (0, plain.outputs - 1)]:
        theirs, ours = copy.deepcopy(plain), copy.deepcopy(plain)
        x = torch.randn(5, 4)
        optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-2, weight_decay=0.5) for m in (theirs, ours)]

        def body(model, optimizer, x, used=used):
            results = model(x)
            loss = sum(results[i] for i in used)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        @trainc.train_step
        def step(x, ours=ours, optimizer=optimizers[1], body=body):
            return body(ours, optimizer, x)

        for _ in range(2):
            assert_same(step(x), body(theirs, optimizers[0], x).detach(), 1e-4)
        assert_same(dict(ours.state_dict()), dict(theirs.state_dict()), 2e-4)


class Constant(torch.autograd.Function):
    """Its gradient does not depend on what it is given, as that of a loss which made it in its forward."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return ctx.saved_tensors[0].cos() + 1


class Shifted(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, da, db):
        return da + db.cos()


class Asking(torch.autograd.Function):
    """It is handed None, and does something else then."""

    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, da, db):
        return (0 if da is None else da) + (torch.full((4,), 5.0) if db is None else db)


def hooked(x, hook):
    h = x * 3
    h.register_hook(hook)
    return h


def constant_hook_of_both(x):
    h = hooked(x, lambda gradient: torch.ones(4))
    return h.sin() + x * 5, h * 2


OWN_BACKWARDS = {
    "a constant": lambda x: (x * 2, Constant.apply(x)), "of several": lambda x: (x * 5, *Shifted.apply(x)),
    "asks": Asking.apply, "asks for an inner one": lambda x: (x.sin(), *Asking.apply(x.cos())),
    "a hook's constant": lambda x: (x * 2, hooked(x, lambda gradient: torch.ones(4)).sin()),
    "a hook's sum": lambda x: (x * 2, hooked(x, lambda gradient: gradient + 1).sin()),
    "a hook of two": lambda x: (x * 4, *(lambda h: (h * 2, h.sin()))(hooked(x, lambda gradient: gradient * 0 + 5))),
    "a hook of all": constant_hook_of_both,
    "a hook that normalises": lambda x: (x * 2, hooked(x, lambda gradient: gradient / gradient.norm()).sin()),
    "a hook that multiplies": lambda x: (x * 2, hooked(x, lambda gradient: gradient * gradient.norm().reciprocal()).sin()),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::trainc.TraincWarning")
@pytest.mark.parametrize("name", OWN_BACKWARDS)
@pytest.mark.parametrize("door", DOORS)
def test_a_backward_of_the_programs_own_runs_where_eager_runs_it(name, door):
    """What it makes of no gradient is not nothing, and eager does not call it."""
    if (name, door) in (("asks", "torch"), ("asks for an inner one", "torch")):
        pytest.skip("Dynamo itself drops set_materialize_grads: its graph gives zeros there with any backend")
    run = OWN_BACKWARDS[name]
    call = DOORS[door](Calls(run))
    count = len(run(torch.ones(4, requires_grad=True)))
    for used in choices(count):
        found = []
        for each in (call, run):
            x = torch.arange(4.0, requires_grad=True)
            results = each(x)
            found.append(torch.autograd.grad(sum(results[i].sum() for i in used), x, allow_unused=True)[0])
        assert_same(*found)


@pytest.mark.parametrize("name", ["scaled", "clipped"])
def test_a_backward_that_gives_nothing_for_nothing_is_compiled(strict, name):
    hooks = {"scaled": lambda gradient: gradient * 0.5, "clipped": lambda gradient: gradient.clamp(-0.1, 0.1)}

    class Model(nn.Linear):
        def forward(self, x):
            h = super().forward(x)
            return h.sum(), hooked(h, hooks[name]).sin().sum()

    plain = Model(4, 4)
    ours = trainc.compile(copy.deepcopy(plain))
    for used in choices(2):
        for model in (plain, ours):
            model.zero_grad()
            results = model(torch.ones(2, 4))
            sum(results[i] for i in used).backward()
        assert_same(*[{n: p.grad for n, p in model.named_parameters()} for model in (ours, plain)])


def test_gradients_of_inputs(engine, strict):
    class Split(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x, y):
            return self.layer(x).sum(), y.exp().sum(), (x * y).sum()

    plain = Split()
    ours = trainc.compile(copy.deepcopy(plain))
    for used in choices(3):
        seen = []
        for model in (plain, ours):
            inputs = [torch.ones(3, 4, requires_grad=True), torch.full((3, 4), 0.5, requires_grad=True)]
            model.zero_grad()
            results = model(*inputs)
            sum(results[i] for i in used).backward()
            seen.append({str(i): t.grad for i, t in enumerate([*inputs, *model.parameters()])})
        assert_same(seen[1], seen[0])


def test_gradients_that_are_none_are_not_computed(core, strict):
    """The plan of a backward has no result for them."""
    model = trainc.compile(Heads())
    model(torch.randn(5, 4))[0].backward()
    plan = next(iter(records.of(model)[0].backward.values())).plan
    made = sum(info is not None for info in plan.output_info)
    assert made == len(list(model.parameters())) - len(missing(model)), plan.output_info


def test_results_retained_and_read_again(engine, strict):
    """retain_graph: each of several backwards through one forward has its own set of gradients."""
    plain = Heads()
    ours = trainc.compile(copy.deepcopy(plain))
    x = torch.randn(5, 4)
    seen = []
    for model in (plain, ours):
        results = model(x)
        for i in (2, 0, 1):
            model.zero_grad()
            results[i].backward(retain_graph=True)
            seen.append({name: p.grad for name, p in model.named_parameters()})
    for got, wanted in zip(seen[3:], seen[:3], strict=True):
        assert_same(got, wanted)
