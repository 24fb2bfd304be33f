"""Results that other results are made of: who asks for their gradients (hooks, retain_grad, torch.autograd.grad) gets eager's."""

import copy
import gc
import random
import weakref

import loss_rule
import pytest
import torch
from conftest import assert_same
from torch import nn
from torch.autograd.graph import get_gradient_edge, register_multi_grad_hook

import trainc
from trainc.base import config, messages, records

pytestmark = pytest.mark.filterwarnings("ignore")


class Random(nn.Module):
    """Values of one size, each made of random earlier ones; some of them are results, and the last is the loss."""

    MAKES = {
        "linear": lambda self, k, a, b: self.layers[k](a).tanh(),
        "product": lambda self, k, a, b: a * b.tanh(),
        "sum": lambda self, k, a, b: a + 2 * b.sigmoid(),
        "dropout": lambda self, k, a, b: nn.functional.dropout(a, 0.3) - b,
        "detached": lambda self, k, a, b: a.detach().cos() * b,
        "mean": lambda self, k, a, b: a.sin().mean(0) + b,
        "batch norm": lambda self, k, a, b: self.norm(a.reshape(-1, 4)).reshape(a.shape) + b,
        "parts": lambda self, k, a, b: a.unbind(-1)[0].unsqueeze(-1) * b,
    }

    def __init__(self, seed):
        super().__init__()
        draw = random.Random(seed)
        self.layers, self.norm = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)]), nn.BatchNorm1d(4)
        steps = draw.randint(3, 7)
        self.steps = [
            (draw.choice([*self.MAKES]), draw.randrange(3), draw.randint(0, i + 1), draw.randint(0, i + 1)) for i in range(steps)
        ]  # fmt: skip
        self.results = sorted(draw.sample(range(2, steps + 2), draw.randint(1, min(4, steps))))

    def forward(self, x):
        values = [x, self.layers[0](x)]
        for kind, k, a, b in self.steps:
            values.append(self.MAKES[kind](self, k, values[a], values[b]))
        loss = values[-1].square().mean() + sum(v.mean() for v in values[1:-1])
        return [loss, *[values[i] for i in self.results]]


def ask(model, x, seed):
    """One step, in which gradients of results are asked for in random ways: all that it shows."""
    draw, shown = random.Random(seed), []
    torch.manual_seed(seed)
    loss, *hidden = model(x)
    wanted, handles, marked = [], [], False
    for i, h in enumerate(hidden):
        for how in draw.choices(["look", "double", "retain", "wanted", "gone", "nothing"], k=draw.choice([1, 1, 2])):
            if not h.requires_grad:
                break
            marked |= how in ("double", "retain")
            if how == "look":
                handles.append(h.register_hook(lambda g, i=i: shown.append((i, g.clone()))))
            elif how == "double":
                h.register_hook(lambda g, i=i: shown.append((i, g.clone())) or 2 * g)
            elif how == "retain":
                h.retain_grad()
            elif how == "wanted":
                wanted.append(h)
            elif how == "gone":
                h.register_hook(lambda g: g.zero_()).remove()
    if draw.random() < 0.3:
        marked = True
        register_multi_grad_hook([h for h in hidden if h.requires_grad], lambda gs: shown.extend(enumerate(gs)))
    total = loss * 1.5
    for h in hidden:
        if draw.random() < 0.5:
            total = total + h.sin().sum()
    parameters = list(model.parameters())
    way = draw.choice(["backward", "backward", "twice", "inputs", "grad", "both", "graph"])
    if way == "grad" and wanted:
        shown += enumerate(torch.autograd.grad(total, wanted, allow_unused=True))
    elif way in ("both", "graph"):
        way = "both" if handles or marked else way  # or it is refused
        edges = [get_gradient_edge(h) for h in wanted]
        found = torch.autograd.grad(total, [*parameters, *edges], allow_unused=True, create_graph=way == "graph")
        shown += enumerate(found)
        if way == "graph" and (again := [g for g in found if g is not None and g.requires_grad]):
            shown += enumerate(torch.autograd.grad(sum(g.square().sum() for g in again), parameters, allow_unused=True))
    elif way == "inputs" and wanted:
        total.backward(inputs=[*wanted, parameters[0]])
        shown += [("given", h.grad) for h in wanted]
    elif way == "twice":
        total.backward(retain_graph=True)
        if handles:
            handles[0].remove()
        total.backward()
    else:
        total.backward()
    shown += [("retained", h.grad) for h in hidden if h.requires_grad and h.retains_grad]
    shown += [("parameter", p.grad) for p in parameters]
    model.zero_grad()
    shown.sort(key=lambda each: str(each[0]))  # results of which none is made of the other come in any order
    return [*shown, *[("buffer", b.clone()) for b in model.buffers()], ("generator", torch.get_rng_state())]


def asked(make, seed, steps, warm=12):
    torch.manual_seed(seed)
    plain, x = make(), torch.randn(3, 4)
    ours = trainc.compile(copy.deepcopy(plain))
    for model in (plain, ours):
        torch.manual_seed(0)
        for _ in range(warm):  # so that most backwards are a plan's, and the model stays compiled
            sum(result.sum() for result in model(x)).backward()
        model.zero_grad()
    for step in range(steps):
        before = copy.deepcopy(plain)
        wanted, got = ask(plain, x, 100 * seed + step), ask(ours, x, 100 * seed + step)
        assert [key for key, _ in got] == [key for key, _ in wanted], (seed, step)
        for i, ((key, a), (_, b)) in enumerate(zip(got, wanted, strict=True)):
            assert (a is None) == (b is None), (seed, step, key)
            if a is not None and not torch.allclose(a, b, rtol=2e-5, atol=2e-5):
                assert (a - b).abs().max() <= moved(before, x, 100 * seed + step, i, b), (seed, step, key)
    return ours


def moved(before, x, seed, i, value):
    """How far a result may lie from eager's `value`, the i-th of a step: as far as eager's own moves when its weights are
    disturbed in the last bit (docs/numerics.md)."""
    others = [copy.deepcopy(before) for _ in loss_rule.SEEDS]
    for other, disturbed in zip(others, loss_rule.SEEDS, strict=True):
        loss_rule.disturb(other, disturbed)
    return loss_rule.SHARE * max((ask(other, x, seed)[i][1] - value).abs().max() for other in others)


@pytest.mark.parametrize("seed", [1, 4, 9, 17, 22, 23, 36, 46, 64])
def test_gradients_of_results_are_eagers(monkeypatch, seed):
    monkeypatch.setattr(config, "engine", "interpreter")  # no plan makes them
    ours = asked(lambda: Random(seed), seed, steps=6)
    assert {record.route for record in records.of(ours)} == {"compiled"}


class Hidden(nn.Module):
    """(loss, hidden): the loss is made of the hidden state."""

    def __init__(self, views=False):
        super().__init__()
        self.a, self.b, self.views = nn.Linear(4, 8), nn.Linear(8, 3), views

    def forward(self, x):
        h = self.a(x).sin()
        return self.b(h).square().mean(), h, *([h[:, :2]] if self.views else [])


def hooked(model, x, steps=3):
    optimizer, shown = torch.optim.SGD(model.parameters(), 0.1), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss, h, *_ = model(x)
        h.register_hook(lambda g: shown.append(g.clone()) or g.clamp(-0.01, 0.01))
        loss.backward()
        optimizer.step()
        shown.append(loss.detach())
    return [*shown, *model.parameters()]


@pytest.mark.parametrize("door", ["compile", "backend"])
def test_a_program_that_asks_at_every_step_runs_in_pytorch_and_is_told_once(core, door):
    plain, x = Hidden(), torch.randn(5, 4)
    ours = copy.deepcopy(plain)
    called = trainc.compile(ours) if door == "compile" else torch.compile(ours, backend="trainc")
    with pytest.warns(messages.TraincWarning) as said:
        got = hooked(called, x)
    assert_same(got, hooked(plain, x))
    said = [str(each.message) for each in said if isinstance(each.message, messages.TraincWarning)]
    assert len(said) == 1 and "gradients of its results are asked for" in said[0]
    if door == "compile":
        assert [record.route for record in records.of(ours)] == ["compiled", "eager"]


def test_whoever_asks_now_and_then_keeps_the_plans(core):
    plain, x = Hidden(), torch.randn(5, 4)
    ours = trainc.compile(copy.deepcopy(plain))
    for step in range(7):
        found = []
        for model in (ours, plain):
            loss, h = model(x)
            if step % 3 == 2:
                h.retain_grad()
            (loss + h.square().sum()).backward()
            found.append(h.grad if step % 3 == 2 else loss.detach())
        assert_same(found[0], found[1])
    assert {record.route for record in records.of(ours)} == {"compiled"}
    assert_same([p.grad for p in ours.parameters()], [p.grad for p in plain.parameters()])


def test_results_that_share_memory_are_refused_and_then_run_in_pytorch(core):
    """AOTAutograd's own node stands around such a trace."""
    asks = {
        "hook": lambda loss, h: (h.register_hook(lambda g: g), loss.backward()),
        "retain": lambda loss, h: (h.retain_grad(), loss.backward()),
        "grad": lambda loss, h: torch.autograd.grad(loss, h),
    }
    x = torch.randn(5, 4)
    for ask in asks.values():
        plain = Hidden(views=True)
        ours = trainc.compile(copy.deepcopy(plain))
        loss, h, part = ours(x)
        with pytest.raises(trainc.UserError, match="share memory: no plan makes it"):
            ask(loss, h)
        del loss, h, part
        assert_same(hooked(ours, x), hooked(plain, x))
        assert records.of(ours)[-1].route == "eager"


def test_other_backwards_are_not_refused(core):
    """While a result of a call that no plan gives a gradient of wants to keep it."""

    class SharesMemory(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(4))

        def forward(self, x):
            h = x * self.w
            return h, h.view(2, 2), h * 2

    results = trainc.compile(SharesMemory())(torch.ones(4))
    results[0].retain_grad()
    (nn.Parameter(torch.ones(3)) * 2).sum().backward()
    with pytest.raises(trainc.UserError, match="share memory"):
        results[2].sum().backward()


def test_a_result_that_is_written_and_one_that_nobody_holds(core):
    """A hook is of the value that the result had; nothing keeps a result alive."""
    plain, x = Hidden(), torch.randn(5, 4)
    found = []
    for model in (plain, trainc.compile(copy.deepcopy(plain))):
        shown = []
        model.b.requires_grad_(False)
        (model(x)[0] + 0).backward()
        loss, h = model(x)
        h.register_hook(lambda g, shown=shown: shown.append(("before", g)))
        g = torch.autograd.grad(loss, h)[0]
        h.mul_(2)
        h.retain_grad()
        h.register_hook(lambda g, shown=shown: shown.append(("after", g)))
        h.sum().backward()
        died = weakref.ref(h)
        shown.append(("retained", h.grad))
        del h
        gc.collect()
        assert died() is None
        found.append([*shown, ("asked", g)])
    assert [key for key, _ in found[0]] == [key for key, _ in found[1]]
    assert_same([value for _, value in found[1]], [value for _, value in found[0]])


def test_gradients_of_gradients_with_hooks_are_refused(core):
    model, x = trainc.compile(Hidden()), torch.randn(5, 4)
    for _ in range(3):
        model(x)[0].backward()
    loss, h = model(x)
    h.register_hook(lambda g: 2 * g)
    with pytest.raises(trainc.UserError, match="Try the step again"):
        torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    loss, h = model(x)
    h.register_hook(lambda g: 2 * g)
    torch.autograd.grad(loss, list(model.parameters()), create_graph=True)


def test_without_fallback_it_is_an_error(core, strict):
    model = trainc.compile(Hidden())
    loss, h = model(torch.randn(5, 4))
    h.retain_grad()
    with pytest.raises(trainc.UserError, match="of a result that another result is made of is not compiled"):
        loss.backward()
