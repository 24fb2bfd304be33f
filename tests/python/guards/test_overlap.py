"""Tensors that lie in one another's memory, one of them written: PyTorch's results, whichever way they lie at which call."""

import copy
import itertools
import random

import pytest
import torch
from torch import nn

import trainc
from trainc.base import messages
from trainc.torch import compat, strided
from trainc.torch.guards import overlap

DOORS = ["compile", "backend"]


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    torch._dynamo.reset()
    monkeypatch.setattr(messages, "warn_once", lambda *_: None)


def opened(model, door):
    return trainc.compile(model) if door == "compile" else torch.compile(model, backend="trainc")


# ---- the test itself ------------------------------------------------------------------------------------------------


def elements(t):
    """The addresses of a tensor's elements' bytes, counted one by one."""
    steps = t.stride()
    places = itertools.product(*map(range, t.shape))
    starts = (t.data_ptr() + t.itemsize * sum(i * s for i, s in zip(place, steps, strict=True)) for place in places)
    return {start + byte for start in starts for byte in range(t.itemsize)}


def test_what_shares_elements_is_found_and_separate_columns_are_not():
    choose, found, apart = random.Random(0), 0, 0
    base = torch.zeros(60)
    for _ in range(4000):
        tensors = []
        for _ in range(choose.randint(2, 4)):
            shape = [choose.randint(0, 4) for _ in range(choose.randint(0, 3))]
            strides = [choose.choice([0, 1, 1, 2, 3, 4, 6, 8, 12]) for _ in shape]
            reach = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if 0 not in shape else 0
            if reach < 60:
                as_type = base.view(choose.choice([torch.float32, torch.float32, torch.int16]))
                tensors.append(as_type.as_strided(shape, strides, choose.randint(0, 59 - reach)))
        written = choose.sample(range(len(tensors)), choose.randint(0, len(tensors)))
        places = list(map(elements, tensors))
        wanted = any(places[i] & places[j] for i in written for j in range(len(tensors)) if i != j)
        pair = overlap.shared(tensors, written)
        assert wanted == (pair is not None), (tensors, written)
        found, apart = found + wanted, apart + (not wanted and len(written) > 0)
        if pair is not None:
            assert pair[0] in written and pair[0] != pair[1]
    assert found > 500 and apart > 500, (found, apart)
    columns = torch.zeros(5, 12)
    assert overlap.shared([columns[:, :4], columns[:, 4:9], columns[:, 9:]], [0, 1, 2]) is None
    assert overlap.shared([columns[:, :5], columns[:, 4:9]], [1]) == (1, 0)
    assert overlap.shared([columns[:, 8:].T, columns[1:, :4]], [0]) is None


def test_a_tensor_whose_own_elements_share_memory_is_found():
    choose, base, shared = random.Random(1), torch.zeros(60), 0
    for _ in range(2000):
        shape = [choose.randint(0, 4) for _ in range(choose.randint(0, 3))]
        strides = [choose.choice([0, 1, 2, 3, 4, 8, 12]) for _ in shape]
        if strided.span(shape, strides) < 60:
            tensor = base.as_strided(shape, strides)
            wanted = len(elements(tensor)) < tensor.numel() * tensor.itemsize
            assert not (wanted and strided.is_apart(shape, strides)), (shape, strides)
            shared += wanted
    assert shared > 300
    assert strided.is_apart((3, 4, 2), (8, 1, 4)) and strided.is_apart((4, 0), (0, 1)) and strided.is_apart((3, 1), (1, 0))


def test_what_was_known_of_inputs_that_moved_is_what_a_first_look_finds():
    """Arguments lie elsewhere at each call, and most of what is written lies where it lay."""
    choose, moved, refused, neighbours = random.Random(2), 0, 0, 0
    places = [torch.zeros(40) for _ in range(4)]

    def tensor(shape, strides):
        base = choose.choice(places)
        return base.as_strided(shape, strides, choose.randint(0, 40 - max(strided.span(shape, strides), 1)))

    def looked(apart, tensors, written):
        try:
            apart.check(tensors, written)
        except overlap.Overlapping as reason:
            return str(reason)
        return apart.neighbours

    for _ in range(400):
        kinds = []
        for _ in range(choose.randint(2, 5)):
            shape = [choose.randint(1, 3) for _ in range(choose.randint(0, 2))]  # empty ones have no address
            kinds.append((shape, [choose.choice([1, 3, 4]) for _ in shape]))
        written = choose.sample(range(len(kinds)), choose.randint(1, 2))
        apart, tensors = overlap.Apart(), [tensor(*kind) for kind in kinds]
        for _ in range(8):
            known = apart._known
            found = looked(apart, tensors, written)
            assert found == looked(overlap.Apart(), tensors, written), (tensors, written)
            refused, neighbours = refused + isinstance(found, str), neighbours + (isinstance(found, set) and len(found) > 0)
            moved += known is not None and apart._known is not known and isinstance(found, set)
            tensors = [tensor(*kind) if choose.random() < 0.3 else t for t, kind in zip(tensors, kinds, strict=True)]
    assert moved > 200 and refused > 200 and neighbours > 200, (moved, refused, neighbours)


@pytest.mark.parametrize("door", DOORS)
def test_a_written_argument_whose_elements_share_memory(door):
    class Writes(nn.Module):
        def forward(self, x):
            x.add_(1)
            return x * 2

    model = opened(Writes(), door)
    for strides in ((8, 1), (4, 1), (8, 1), (0, 1)):  # the last is refused by PyTorch
        found = []
        for call in (Writes(), model):
            x = torch.arange(40.0).as_strided((4, 8), strides)
            try:
                found.append((call(x), x))
            except RuntimeError as error:
                found.append(str(error))
        if isinstance(found[0], str):
            assert found[1] == found[0]
        else:
            torch.testing.assert_close(found[1], found[0])


def test_a_tensor_for_a_trace_is_of_the_same_type():
    base = torch.randn(6, 4, requires_grad=True)
    view, parameter = base[1:, ::2], nn.Parameter(base.detach()[0])
    for t in (view, view.detach(), parameter, base.detach().T, base.detach().expand(2, 6, 4)):
        first, twin = overlap.apart([base, t])
        assert first is base and twin.untyped_storage()._cdata != base.untyped_storage()._cdata
        for name in ("shape", "dtype", "device", "requires_grad", "is_leaf", "__class__"):
            assert getattr(twin, name) == getattr(t, name), name
        assert twin.stride() == t.stride()


# ---- arguments ------------------------------------------------------------------------------------------------------


def lie(choose):
    """Three tensors of shape [4, 3], somehow in one storage or in several."""
    base = torch.randn(100, generator=torch.Generator().manual_seed(choose.randint(0, 999)))
    ways = [
        lambda: base[choose.randint(0, 60) :][:12].view(4, 3),
        lambda: base[36:72].view(4, 9)[:, choose.choice([0, 1, 3, 6]) :][:, :3],
        lambda: torch.randn(4, 3, generator=torch.Generator().manual_seed(7)),
    ]
    return [choose.choice(ways)() for _ in range(3)]


class Program(nn.Module):
    """Reads and writes its arguments and a buffer, one after the other."""

    def __init__(self, steps):
        super().__init__()
        self.steps = tuple(steps)
        self.register_buffer("buffer", torch.ones(4, 3))
        self.weight = nn.Parameter(torch.full((4, 3), 0.5))

    def forward(self, a, b, c):
        values = [a, b, c, self.buffer]
        result = self.weight * 1.0
        for what, i, j in self.steps:
            if what == "add":
                values[i].add_(values[j].detach() * 0.5)
            elif what == "set":
                values[i].copy_(values[j] + 1)
            elif what == "part":
                values[i][1:].mul_(2.0)
            else:
                result = result * torch.sin(values[i])
        return result


def steps(choose):
    kinds = ["add", "set", "part", "read", "read", "read"]
    return [(choose.choice(kinds), choose.randint(0, 3), choose.randint(0, 3)) for _ in range(5)] + [("read", 1, 0)]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("seed", range(8))
def test_programs_that_write_their_arguments(door, seed):
    choose = random.Random(seed)
    plain = Program(steps(choose))
    ours = copy.deepcopy(plain)
    run = opened(ours, door)
    for call in range(10):
        lay = choose.randint(0, 3)
        found = []
        for model, f in ((plain, plain), (ours, run)):
            tensors = lie(random.Random(100 * seed + lay))
            with torch.set_grad_enabled(call % 3 != 2):
                result = f(*tensors)
            grad = torch.autograd.grad(result.sum(), model.weight)[0] if call % 3 != 2 else torch.zeros(())
            found.append([result.detach(), *tensors, model.buffer, grad])
        for got, wanted in zip(found[1], found[0], strict=True):
            torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("door", DOORS)
def test_an_argument_that_is_a_view_of_a_buffer_or_a_parameter(door):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(6))
            self.weight = nn.Parameter(torch.ones(6))

        def forward(self, x):
            self.mean.add_(1.0)
            return x * self.weight + self.mean[:3].repeat(2)

    found = []
    for ours in (False, True):
        model = Model()
        run, results = opened(model, door) if ours else model, []
        for x in ("mean", "weight", None, "mean", None, "weight", "mean"):
            given = torch.full((6,), 3.0) if x is None else getattr(model, x).detach()
            result = run(given)
            results += [result.detach().clone(), model.mean.clone(), *torch.autograd.grad(result.sum(), model.weight)]
        found.append(results)
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize("door", DOORS)
def test_buffers_in_one_storage(door):
    """Two buffers that overlap, one of them written, and statistics that lie side by side, which are compiled."""

    class Model(nn.Module):
        def __init__(self, overlapping):
            super().__init__()
            flat = torch.zeros(20)
            self.register_buffer("mean", flat[:8])
            self.register_buffer("other", flat[4:12] if overlapping else flat[8:16])
            self.weight = nn.Parameter(torch.ones(8))

        def forward(self, x):
            self.mean.mul_(0.9).add_(x.mean(0) * 0.1)
            return (x - self.other) * self.weight

    for overlapping in (False, True):
        torch._dynamo.reset()
        plain, ours = Model(overlapping), Model(overlapping)
        run = opened(ours, door)
        for i in range(4):
            x = torch.randn(5, 8, generator=torch.Generator().manual_seed(i))
            for got, wanted in ((run(x), plain(x)), (ours.mean, plain.mean), (ours.other, plain.other)):
                torch.testing.assert_close(got, wanted)
        if door == "compile":
            assert [c.route for c in trainc.explain(ours).compilations] == ["compiled"]


def test_arguments_that_are_only_read_are_compiled(monkeypatch):
    """As a language model's inputs and labels, two views of one batch."""
    monkeypatch.setattr(trainc.config, "fallback", False)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 6)

        def forward(self, x, y):
            return (self.layer(x) - y).square().mean()

    plain, batch = Model(), torch.randn(4, 7)
    ours = trainc.compile(copy.deepcopy(plain))
    for x, y in ((batch[:, :-1], batch[:, 1:]), (batch[:, :-1].clone(), batch[:, 1:].clone()), (batch[:, :-1], batch[:, :-1])):
        torch.testing.assert_close(ours(x, y), plain(x, y))
    assert all(c.route == "compiled" for c in trainc.explain(ours).compilations)
    monkeypatch.setattr(compat.compiled_call(ours), "_in_pytorch", None)
    ours(batch[:, :-1], batch[:, 1:])


@pytest.mark.parametrize("door", DOORS)
def test_results_that_are_inputs_and_results_that_come_back(door):
    """Outputs that are views of inputs, and calls that are given what earlier calls gave, all of it or a part."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.full((64, 512), 0.9))

        def forward(self, x):
            y = torch.sin(x) * self.weight
            return y, x[1:], y.T

    plain, found = Model(), []
    run = opened(plain, door)
    for f in (plain.forward, run):
        x, kept = torch.linspace(0, 1, 64 * 512).view(64, 512), []
        for _ in range(5):
            y, part, turned = f(x)
            kept += [y, part, turned, *torch.autograd.grad(y.sum(), plain.weight)]
            part.add_(0.25)  # and with it the argument
            kept.append(x.detach().clone())
            x = turned.detach().T
        found.append(kept)
    for wanted, got in zip(*found, strict=True):
        torch.testing.assert_close(got, wanted)


# ---- parameters that a step updates ---------------------------------------------------------------------------------


class Shared(nn.Module):
    """Two parameters in one storage, `distance` elements apart, of eight each."""

    def __init__(self, distance):
        super().__init__()
        flat = torch.linspace(-1, 1, 24)
        self.first, self.second = nn.Parameter(flat[:8]), nn.Parameter(flat[distance : distance + 8])
        self.own = nn.Parameter(torch.ones(8))

    def forward(self, x):
        return (torch.sin(x * self.first) * self.second + self.own).square().sum()


OPTIMIZERS = [
    (torch.optim.SGD, {"lr": 0.1}), (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    (torch.optim.AdamW, {"lr": 0.1}), (torch.optim.Adam, {"lr": 0.1, "amsgrad": True, "weight_decay": 0.1}),
]  # fmt: skip


@pytest.mark.parametrize("fuse_step", [False, True])
@pytest.mark.parametrize(("make", "flags"), OPTIMIZERS)
@pytest.mark.parametrize("distance", [0, 3, 8, 16])
def test_parameters_that_overlap_are_updated_one_after_the_other(distance, make, flags, fuse_step):
    plain, ours = Shared(distance), Shared(distance)
    theirs, mine = make(plain.parameters(), **flags), make(ours.parameters(), **flags)
    trainc.compile(ours, mine, fuse_step=fuse_step)
    for i in range(4):
        x = torch.randn(8, generator=torch.Generator().manual_seed(i))
        for model, optimizer in ((plain, theirs), (ours, mine)):
            optimizer.zero_grad()
            model(x).backward()
            optimizer.step()
        for got, wanted in zip(ours.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(got, wanted)
    for p, q in zip(ours.parameters(), plain.parameters(), strict=True):
        for key, value in theirs.state[q].items():
            torch.testing.assert_close(mine.state[p][key], value)


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.AdamW])
def test_parameters_that_come_to_overlap_between_two_steps(make):
    plain, ours = Shared(16), Shared(16)
    optimizers = [make(m.parameters(), lr=0.1) for m in (plain, ours)]
    trainc.compile(ours, optimizers[1])
    for i in range(4):
        x = torch.randn(8, generator=torch.Generator().manual_seed(i))
        for model, optimizer in zip((plain, ours), optimizers, strict=True):
            if i == 2:
                model.own.data = model.first.data.view(8)
            optimizer.zero_grad()
            model(x).backward()
            optimizer.step()
        for got, wanted in zip(ours.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(got, wanted)


def test_train_step_refuses_what_overlaps_at_any_call():
    model = Shared(16)
    for p in model.parameters():
        p.data = p.data.clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @trainc.train_step
    def step(x):
        optimizer.zero_grad()
        loss = model(x)
        loss.backward()
        optimizer.step()
        return loss

    step(torch.ones(8))
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(trainc.UserError, match="shares memory"):
        step(model.first.detach())
    assert all(map(torch.equal, before, model.parameters()))
    step(torch.ones(8))
