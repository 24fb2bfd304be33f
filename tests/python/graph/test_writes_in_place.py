"""Writes in place: whatever view of a tensor is written, its memory holds eager's numbers; what was written lies where it lay."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F
from conftest import DOORS, Calls, assert_same
from torch import nn

import trainc
from trainc.torch.strided import can_lie, is_apart

WRITES = {
    "fill": lambda v: v.fill_(3),
    "zero": lambda v: v.zero_(),
    "add": lambda v: v.add_(1),
    "copy": lambda v: v.copy_(torch.ones_like(v)),
    "mul": lambda v: v.mul_(-2),
    "first": lambda v: v[:1].fill_(5),
    "masked": lambda v: v.masked_fill_(v < 0, 7),
    "clamp": lambda v: v.clamp_(max=2),
}


def special() -> torch.Tensor:
    """Numbers that are lost where a difference of them is added again: large ones, infinity, NaN, a negative zero."""
    x = torch.full((4, 6), 1e8)
    x[1, 2], x[2, 2], x[3, 1], x[0] = float("inf"), float("nan"), -0.0, torch.arange(6.0)
    return x


def random_view(rng: random.Random, sizes: list[int]):
    """A function that gives a view of a tensor of these sizes."""
    axis, other = rng.randrange(len(sizes)), rng.randrange(len(sizes))
    size, steps, start = sizes[axis], rng.randint(1, 2), rng.randrange(max(1, sizes[axis]))
    length = rng.randint(1, max(1, size))
    gap = length + rng.randint(0, 1)
    grown = [2 if n == 1 else n for n in sizes]
    kinds = {
        "transpose": lambda v: v.transpose(axis, other),
        "unsqueeze": lambda v: v.unsqueeze(axis),
        "expand": lambda v: v.expand(1, *v.shape),
        "grow": lambda v: v.expand(3, *v.shape),
        "grow what is 1": lambda v: v.expand(grown),
        "slice": lambda v: v.narrow(axis, start, size - start)[::steps],
        "squeeze": lambda v: v.squeeze(),
        "select": lambda v: v.select(axis, start),
        "unfold": lambda v: v.unfold(axis, length, steps),
        "unfold apart": lambda v: v.unfold(axis, length, gap),
        "diagonal": lambda v: v.diagonal(0, axis, other),
        "by strides": lambda v: v.as_strided([min(2, n) for n in v.shape], v.stride()),
    }
    name = rng.choice(["unfold", "unfold apart", "expand", "grow", *kinds])
    return kinds[name]


def random_program(seed: int):
    """x -> (what was written through views of it, a view of it); None where eager refuses, or writes a place twice."""
    rng = random.Random(seed)
    start, y, views = rng.choice(["made", "made transposed", "given", "given transposed"]), special(), []
    for _ in range(rng.randint(1, 4)):
        view = random_view(rng, list(y.shape))
        try:
            y = view(y)
        except (RuntimeError, IndexError):
            continue
        views.append(view)
        if not y.dim() or not y.numel():
            return None
    name = rng.choice(list(WRITES))
    write, apart = WRITES[name], can_lie if name in ("fill", "zero") else is_apart
    if not apart(y.shape, y.stride()):
        return None

    def program(x):
        y = x.t() if "transposed" in start else x
        y = y * 1 if "made" in start else y
        v = y.t() if "transposed" in start else y
        for view in views:
            v = view(v)
        write(v)
        return y, v + 0

    try:
        program(special())
    except RuntimeError:
        return None
    program.given = "given" in start
    return program


class Programs(nn.Module):
    def __init__(self, programs):
        super().__init__()
        self.programs = programs

    def forward(self, x):
        return [program(x) for program in self.programs]


def steps(x: torch.Tensor) -> list[int]:
    return [step for step, size in zip(x.stride(), x.shape, strict=True) if size != 1]


def same(got: torch.Tensor, wanted: torch.Tensor) -> bool:
    # the sign of NaN is nobody's promise
    numbers = torch.equal(got.nan_to_num(0.5), wanted.nan_to_num(0.5)) and torch.equal(got.signbit(), wanted.signbit())
    return numbers and torch.equal(got.isnan(), wanted.isnan()) and steps(got) == steps(wanted)


def wrong(programs, door) -> list[int]:
    """Those that do otherwise than in PyTorch."""
    results = door(Programs(programs))(special())
    return [
        i
        for i, (program, result) in enumerate(zip(programs, results, strict=True))
        if not all(map(same, result, program(special())))
    ]


@pytest.mark.parametrize("door", DOORS)
def test_writes_through_any_view(door: str, monkeypatch) -> None:
    monkeypatch.setattr(trainc.config, "fallback", False)
    programs = [program for seed in range(150) if (program := random_program(seed)) is not None]
    assert len(programs) > 80
    assert not wrong([p for p in programs if not p.given], DOORS[door])
    for program in [p for p in programs if p.given][:8]:  # they write the argument: one by one
        assert not wrong([program], DOORS[door])


@pytest.mark.parametrize("door", DOORS)
def test_gradients_of_what_was_written_through_views(door: str) -> None:
    class Model(nn.Module):
        def forward(self, x):
            y, z = x * 2, x * 3
            y[:1].expand(3, 6)[1].mul_(x[1])
            z.unfold(1, 2, 3)[:, 0].add_(x[:, :2])
            return y.sin() + z.cos() + (x * 1).expand(1, 4, 6).copy_(x.exp())[0]

    found = []
    for way in (lambda module: module, DOORS[door]):
        torch.manual_seed(0)
        x = torch.rand(4, 6).requires_grad_()
        result = way(Model())(x)
        result.square().sum().backward()
        found.append((result.detach(), x.grad))
    torch.testing.assert_close(found[1], found[0])


# Each writes y, which is transposed in memory.
LAID = {
    "addmm_": lambda y, a, b: y.addmm_(a, b),
    "masked_fill_": lambda y, a, b: y.masked_fill_(a @ b > 0, 1.0),
    "masked_scatter_": lambda y, a, b: y.masked_scatter_(a @ b > 0, a @ b),
    "index_add_": lambda y, a, b: y.index_add_(0, torch.tensor([0, 2]), (a @ b)[:2]),
    "scatter_": lambda y, a, b: y.scatter_(0, torch.zeros(2, 4, dtype=torch.int64), 1.0),
    "tril_": lambda y, a, b: y.tril_(),
    "cumsum_": lambda y, a, b: y.cumsum_(0),
    "renorm_": lambda y, a, b: y.renorm_(2, 0, 1.0),
    "out=": lambda y, a, b: torch.mm(a, b, out=y),
    "of a view": lambda y, a, b: y.t().addmm_(b.t(), a.t()),
    "of a part": lambda y, a, b: y[1:].addmm_(a[1:], b),
}


@pytest.mark.parametrize("door", DOORS)
def test_what_was_written_lies_where_it_lay(door: str, monkeypatch) -> None:
    """And dropout draws in that order."""
    monkeypatch.setattr(trainc.config, "fallback", False)

    class Model(nn.Module):
        def forward(self, x, a, b):
            results = []
            for write in LAID.values():
                y = x.t() * 2
                write(y, a, b)
                results += [y, F.dropout(y, 0.5), torch.rand_like(y)]
            return results

    found = []
    for way in (lambda module: module, DOORS[door]):
        torch.manual_seed(3)
        found.append(way(Model())(torch.randn(4, 5), torch.randn(5, 3), torch.randn(3, 4)))
    for i, (wanted, got) in enumerate(zip(*found, strict=True)):
        name = list(LAID)[i // 3]
        assert got.stride() == wanted.stride() and torch.equal(got == 0, wanted == 0), name
        torch.testing.assert_close(got, wanted, msg=name)


@pytest.mark.parametrize("door", DOORS)
def test_empty_strided(door: str, monkeypatch) -> None:
    class Gaps(nn.Module):
        def forward(self, x):
            y, z = x.new_empty_strided((2, 3), (8, 2)), torch.empty_strided((2, 3), (0, 1))
            y.copy_(x)
            y[0].add_(1)
            return y, y * 2, z.fill_(1.0), z * x

    class Shared(nn.Module):
        def __init__(self, write):
            super().__init__()
            self.write = write

        def forward(self, x):
            y = x.new_empty_strided((2, 3), (2, 1))
            self.write(y, x)
            return y + 0

    x = torch.rand(2, 3)
    with monkeypatch.context() as patch:
        patch.setattr(trainc.config, "fallback", False)
        for got, wanted in zip(DOORS[door](Gaps())(x), Gaps()(x), strict=True):
            assert torch.equal(got, wanted) and got.stride() == wanted.stride()
    for write in (lambda y, x: y.copy_(x), lambda y, x: y.fill_(0).add_(1)):  # eager writes the place that they share twice
        model = DOORS[door](Shared(write))
        with pytest.warns(trainc.TraincWarning, match="elements share memory"):
            got = model(x)
        assert torch.equal(got, Shared(write)(x)) and torch.equal(model(2 * x), Shared(write)(2 * x))


@pytest.mark.parametrize("door", DOORS)
def test_what_eager_refuses_to_write_twice(door: str) -> None:
    class Model(nn.Module):
        def forward(self, x):
            return torch.index_select(x, 0, torch.tensor([0, 1]), out=x.new_empty(1, 3).expand(2, 3))

    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        DOORS[door](Model())(torch.rand(2, 3))


@pytest.mark.parametrize("door", DOORS)
def test_draws_into_what_is_not_row_major(door: str) -> None:
    """Eager draws in the order of memory, and normal numbers otherwise where there are gaps."""
    views = {"row-major": lambda y: y, "transposed": lambda y: y.t(), "part": lambda y: y[:, 1:6], "steps": lambda y: y[:, ::2]}
    draws = [
        lambda v: v.bernoulli_(0.5), lambda v: v.uniform_(), lambda v: F.dropout(v.fill_(1), 0.5, inplace=True),
        lambda v: v.normal_(),
    ]  # fmt: skip

    class Model(nn.Module):
        def __init__(self, draws, views):
            super().__init__()
            self.draws, self.views = draws, views

        def forward(self, x):
            results = []
            for draw in self.draws:
                for view in self.views:
                    y = x * 1
                    draw(view(y))
                    results.append(y)
            return [*results, torch.rand(2)]

    for some in (draws[:3], draws[3:]):
        found = []
        for way in (lambda module: module, DOORS[door]):
            torch.manual_seed(4)
            found.append(way(Model(some, list(views.values())))(torch.ones(8, 8)))
        for i, (wanted, got) in enumerate(zip(*found, strict=True)):
            torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6, msg=str(i))


@pytest.mark.parametrize("door", DOORS)
def test_a_place_in_the_storage_of_an_expanded_argument(door: str) -> None:
    """Where another argument begins, it is another element's place."""

    class Module(nn.Linear):
        def forward(self, x):
            return x.expand(4, 8).as_strided((8,), (1,), 0) * self.weight[0]

    module = Module(8, 1)
    compiled = DOORS[door](module)
    for x in (torch.rand(8), torch.rand(20)[3:11]):
        assert torch.equal(compiled(x), torch.as_strided(x, (8,), (1,), 0) * module.weight[0])


LISTS = {
    "the same twice": lambda y: torch._foreach_mul_([y, y], 3),
    "parts of one": lambda y: torch._foreach_add_([y[:2], y[1:3]], 1),
    "one after the other": lambda y: torch._foreach_add_([y[0], y[1], y[2]], [y[1], y[0], y[0]]),
    "copies": lambda y: torch._foreach_copy_([y[1], y[2], y[3]], [y[0], y[1], y[2]]),
    "two lists": lambda y: torch._foreach_addcmul_([y[0], y[1]], [y[1], y[0]], [y[2], y[2]]),
    "numbers": lambda y: torch._foreach_pow_([y[:1], y[0]], [2.0, 3.0]),
    "apart": lambda y: torch._foreach_mul_([y[:2] * 1, y], 3),
}


@pytest.mark.parametrize("door", DOORS)
def test_lists_of_tensors_in_one_memory(door: str, monkeypatch) -> None:
    """Eager writes one after the other."""
    monkeypatch.setattr(trainc.config, "fallback", False)

    def program(write):
        def run(x):
            y = x * 1
            write(y)
            return y, y + 0

        return run

    programs = [program(write) for write in LISTS.values()]
    x = torch.rand(4, 6) + 1
    for (got, copied), (name, run) in zip(DOORS[door](Programs(programs))(x), zip(LISTS, programs, strict=True), strict=True):
        torch.testing.assert_close((got, copied), run(x), msg=name)


def assert_learns_as_eager(run, door: str, monkeypatch) -> None:
    """The result and the gradient, of (4, 6); what is refused runs in PyTorch, without a word here."""
    monkeypatch.setattr(trainc.base.messages, "warn_once", lambda *_: None)
    found = []
    for program in (DOORS[door](Programs([run])), Programs([run])):
        given = torch.linspace(0.5, 1.5, 24).reshape(4, 6).requires_grad_()
        (result,) = program(given)
        result.square().sum().backward()
        found.append((result.detach(), given.grad))
    torch.testing.assert_close(*found)


@torch.no_grad()
def listed(y):
    torch._foreach_add_([y[:, 1:].detach()], [y[:, :-1].detach()])


# Writes that read what they write, and some that only lie close by: what they give, of (4, 6).
INTO_ITSELF = {
    "columns to the right": lambda y: y[:, 1:].copy_(y[:, :-1]), "columns to the left": lambda y: y[:, :4].add_(y[:, 2:]),
    "transposed": lambda y: y[:4, :4].add_(y[:4, :4].T), "wide": lambda y: y.copy_(y[:, :1]),
    "of bytes": lambda y: y[:, 1:].add_(y.detach().view(torch.int32)[:, :-1]),
    "every second": lambda y: y[:, ::2].copy_(y[:, 1::2]), "halves": lambda y: y[:, :3].add_(y[:, 3:]),
    "itself": lambda y: y.add_(y), "listed": listed,
    "a copy": lambda y: y[:, 1:].copy_(y[:, :-1].clone()),
}  # fmt: skip


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", INTO_ITSELF)
def test_what_reads_its_own_writes_has_eagers_order(door: str, name: str, monkeypatch) -> None:
    def run(x):
        y = x * 1
        INTO_ITSELF[name](y)
        return y

    assert_learns_as_eager(run, door, monkeypatch)


TURNED = {
    "row": lambda y: (y[0], y.t_())[0], "column": lambda y: (y[:, 0], y.swapaxes_(0, 1).mul_(2))[0],
    "unsqueeze": lambda y: (y[0], y.unsqueeze_(0))[0], "no view": lambda y: y.t_(), "dropped": lambda y: (y[0].sum(), y.t_())[1],
    "a view itself": lambda y: y.view(6, 4).t_(),
}  # fmt: skip


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", TURNED)
def test_views_of_what_is_turned_in_place_have_eagers_history(door: str, name: str, monkeypatch) -> None:
    assert_learns_as_eager(lambda x: TURNED[name](x * 1) * 3, door, monkeypatch)


# Views that are written by a call with lists: what they give, of (4, 6).
LISTED_VIEWS = {
    "slice": lambda y, v: torch._foreach_mul_([v], 2), "two": lambda y, v: torch._foreach_exp_([v, y[2:].clone()]),
    "no gradient": lambda y, v: torch._foreach_mul_([v.detach()], 2), "whole": lambda y, v: torch._foreach_mul_([y], 2),
}  # fmt: skip


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", LISTED_VIEWS)
def test_views_that_a_call_with_lists_writes_have_eagers_history(door: str, name: str, monkeypatch) -> None:
    def run(x):
        y = x * 1
        view = y[:2]
        LISTED_VIEWS[name](y, view)
        return view * 3

    assert_learns_as_eager(run, door, monkeypatch)


class InPlace(nn.Module):
    def __init__(self, run):
        super().__init__()
        self.weight, self.run = nn.Parameter(torch.linspace(0.5, 2, 24).reshape(4, 6)), run

    def forward(self, x):
        return self.run(x * self.weight)


def beside_what_is_dropped(kind):
    def run(y):
        z = kind(y)
        z.add_(1)
        return z.sin(), y * 2, F.dropout(y, 0.5)

    return run


# Where they drop nothing, and convert nothing, eager gives the operand itself.
ITSELF = {
    "dropout in evaluation": lambda y: F.dropout(y, 0.3, False),
    "dropout of none": lambda y: F.dropout(y, 0.0),
    "alpha": lambda y: F.alpha_dropout(y, 0.3, False),
    "channels": lambda y: F.dropout2d(y.reshape(1, 4, 6, 1), 0.0),
    "layer": nn.Dropout(0.3).eval(),
    "to": lambda y: y.to(torch.float32),
    "contiguous": lambda y: y.contiguous(),
    "real": torch.real,
    "atleast_2d": torch.atleast_2d,
    "reshape": lambda y: y.reshape(24),
    "einsum": lambda y: torch.einsum("ij->ji", y),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("kind", ITSELF)
def test_what_gives_its_operand_itself(door: str, kind: str, monkeypatch) -> None:
    monkeypatch.setattr(trainc.config, "fallback", False)
    check(InPlace(beside_what_is_dropped(ITSELF[kind])), door)


def check(module: nn.Module, door: str) -> None:
    """Results, where they lie, whether they want a gradient, what is written through one of them, and the gradients."""
    found = []
    for way in (lambda module: module, DOORS[door]):
        torch.manual_seed(1)
        module.zero_grad()
        results = way(module)(torch.linspace(-1, 1, 24).reshape(4, 6))
        sum(((i + 1) * r).square().sum() for i, r in enumerate(results) if r.requires_grad).backward()
        learn = [r.requires_grad for r in results]
        values = [r.detach().clone() for r in results]
        with torch.no_grad():
            results[-1].mul_(3)
        found.append(
            (values, [r.detach().clone() for r in results], module.weight.grad.clone(), learn, [r.stride() for r in results])
        )
    torch.testing.assert_close(found[1][:3], found[0][:3])
    assert found[1][3:] == found[0][3:]


def no_grad(of):
    with torch.no_grad():
        return of()


DETACHED = {
    "a part": lambda y: (v := y[:, ::2], v.detach()),
    "a part of it": lambda y: (v := y[:, ::2], v.detach()[:2]),
    "windows": lambda y: (v := y.unfold(1, 3, 3), v.detach()),
    "turned": lambda y: (v := y[:, :4].t(), v.detach()),
    "turned back": lambda y: (v := y[:, :4].t(), v.detach().t()),
    "flat": lambda y: (v := y.sin(), v.detach().flatten()),
    "data": lambda y: (v := y.sin(), v.data.t()),
    "of the same": lambda y: (v := y[1:].sin(), v.detach(), v[0].detach()),
    "in another shape": lambda y: (v := y[None], y.transpose_(0, 1), v.transpose(1, 1))[::2],
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", DETACHED)
def test_results_that_are_detached_views_of_others(door: str, name: str) -> None:
    check(InPlace(DETACHED[name]), door)


@pytest.mark.parametrize("door", DOORS)
def test_views_that_were_made_without_gradients_have_none(door: str) -> None:
    class Module(InPlace):
        def forward(self, x):
            v = (x * self.weight).sin()
            return v, no_grad(lambda: v.t()), no_grad(lambda: self.weight[:2])

    found = []
    for way in (lambda module: module, DOORS[door]):
        module = Module(None)
        results = way(module)(torch.ones(4, 6))
        sum((i + 1) * r.sum() for i, r in enumerate(results) if r.requires_grad).backward()
        found.append(module.weight.grad)
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    "write",
    [
        lambda y: y.unsafe_chunk(2)[0].add_(1),
        lambda y: torch.unsafe_split(y, 2, 1)[1].t().mul_(3),
        lambda y: (part := y.unsafe_split_with_sizes([1, 3])[0], y.mul_(2), y.add_(part.sum()))[-1],
        lambda y: torch.ones(2, 12, out=y.view(-1)),
    ],
    ids=["chunk", "split", "the whole", "another size"],
)
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_memory_that_a_trace_does_not_know_to_be_shared(door: str, write) -> None:
    def run(x):
        y = x * 1
        write(y)
        return y, y * 2

    x = torch.rand(4, 6)
    for got, wanted in zip(DOORS[door](Programs([run]))(x)[0], run(x), strict=True):
        assert torch.equal(got, wanted)


def both(write):
    """Of an argument, and of what was made of it."""
    return lambda x: write(x), lambda x: write(x * 1)


def halves(y):
    return y.unsafe_chunk(2)


# What is left behind is what was written, or lies in it: the caller has it, and no operation reads it.
LEFT = {
    "a part of what was written": lambda y: (halves(y), y.add_(1))[0][0],
    "a part of a part": lambda y: (halves(halves(y)[0]), y.add_(1))[0][1],
    "the whole of a part": lambda y: (halves(y)[0].add_(1), y)[1],
    "a view of the whole": lambda y: (y.t(), halves(y)[0].add_(1))[0],
    "another parting": lambda y: (y.unsafe_split(1), halves(y)[0].mul_(3))[0][1],
    "an argument alone": lambda y: (halves(y)[1].mul_(3), 1)[1],
    "beside it": lambda y: (p := halves(y), p[0].add_(1))[0][1] * 2,
    "strides of a part": lambda y: halves(y)[1].as_strided((3,), (2,), 1) * 2,
    "a part of the other part": lambda y: (p := halves(y), halves(p[1]), p[0].add_(1))[1][0],
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", LEFT)
@pytest.mark.filterwarnings("ignore:.*runs in PyTorch")
def test_memory_that_is_left_behind_and_not_read(door: str, name: str) -> None:
    for program in both(LEFT[name]):
        found = []
        for way in (DOORS[door], lambda module: module):
            x = torch.linspace(-1, 1, 24).reshape(4, 6)
            result = way(Programs([program]))(x)[0]
            found.append((x, result))
        assert torch.equal(found[0][0], found[1][0]), "the argument"
        assert torch.equal(torch.as_tensor(found[0][1]), torch.as_tensor(found[1][1]))


def _clamped(y, w):
    with torch.no_grad():
        y.clamp_(-0.5, 0.5)
    return y * w


def _detached(y, w):
    y.detach().mul_(2)
    return y * w


def _beside(y, w):
    y.data.mul_(2)
    return w * 3


def _seen(y, w):
    y.mul_(2)
    return y * w


UNSEEN = {"no_grad": _clamped, "detach": _detached, "data": _beside, "seen": _seen}


@pytest.mark.parametrize("way", UNSEEN)
def test_arguments_keep_the_history_that_autograd_has_seen_no_write_of(core, way) -> None:
    """Their hooks, and `torch.autograd.grad` with respect to them, are of the tensor before and after the call."""
    found = []
    for compiled in (False, True):
        model = Calls(UNSEEN[way])
        call = trainc.compile(model) if compiled else model
        for _ in range(2):
            leaf, w = torch.linspace(-1, 2, 4, requires_grad=True), torch.linspace(1, 2, 4, requires_grad=True)
            y = leaf.sin()
            told, before = [], y * 1
            y.register_hook(told.append)
            result = (call(y, w).square() + y * 3 + before.square()).sum()
            asked = torch.autograd.grad(result, [leaf, w] if way == "seen" else [leaf, w, y])
            found.append([*asked, *told, y.detach().clone()])
            assert way == "seen" or y.grad_fn.name() == "SinBackward0"
    for a, b in zip(found[2:], found[:2], strict=True):
        for x, wanted in zip(a, b, strict=True):
            assert_same(x, wanted)


@pytest.mark.parametrize("way", [way for way in UNSEEN if way != "seen"])
def test_views_of_leaves_that_are_written_where_autograd_does_not_see_it(core, strict, way) -> None:
    """With a history of a leaf's view they would be refused, as those are that autograd sees."""
    found = []
    for compiled in (False, True):
        model = Calls(UNSEEN[way])
        call = trainc.compile(model) if compiled else model
        leaf, w = torch.linspace(-1, 2, 4, requires_grad=True), torch.linspace(1, 2, 4, requires_grad=True)
        call(leaf[:], w).square().sum().backward()
        found.append([leaf.detach().clone(), leaf.grad, w.grad])
    for x, wanted in zip(*found, strict=True):
        if wanted is not None or x is not None:
            assert_same(x, wanted)


@pytest.mark.parametrize("change", ["squeeze_", "t_", "unsqueeze_"])
def test_arguments_that_become_views_in_place(core, change) -> None:
    """Eager gives them a history, or refuses to."""
    found = []
    for compiled in (False, True):
        model = Calls(lambda y, z: (getattr(y, change)(*([0] if change == "unsqueeze_" else [])), z * 2)[1])
        call = trainc.compile(model) if compiled else model
        for given in (lambda leaf: leaf.sin(), lambda leaf: leaf[:]):
            y = given(torch.ones(3, 2, requires_grad=True))
            z = y * 1
            try:
                found.append((y.grad_fn.name() if call(y, z) is not None else "", y.shape))
            except RuntimeError as error:
                found.append(str(error))
    assert found[2:] == found[:2]


BUFFERS = {
    "copy_": lambda b, y: b.copy_(y), "a part": lambda b, y: b[:1].copy_(y[:1]),
    "average": lambda b, y: b.mul_(0.5).add_(y.detach()), "unseen": lambda b, y: b.data.copy_(y.detach()),
}  # fmt: skip


@pytest.mark.parametrize("way", BUFFERS)
@pytest.mark.filterwarnings("ignore:.*runs in PyTorch. forward writes a buffer that has a history")
def test_buffers_that_are_written_with_what_learns(core, way: str) -> None:
    """A buffer without a history gets one, in eager without an error: no loss reads what it was before."""

    class Model(nn.Linear):
        def __init__(self):
            super().__init__(4, 4)
            self.register_buffer("last", torch.zeros(2, 4))

        def forward(self, x):
            y = super().forward(x).tanh()
            BUFFERS[way](self.last, y)
            return y

    found = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = Model()
        call = trainc.compile(model) if compiled else model
        for turn in range(3):
            call(torch.ones(2, 4) * (turn + 1)).square().sum().backward()
            found.append([model.last.detach().clone(), model.last.requires_grad, model.weight.grad.clone()])
    for mine, eagers in zip(found[3:], found[:3], strict=True):
        assert mine[1] == eagers[1]
        assert_same(mine[::2], eagers[::2])


NUMBERS = {
    "buffer": lambda m, x: m.number.add_(x.detach().max()), "copied": lambda m, x: m.number.copy_(x.detach().sum()),
    "out": lambda m, x: torch.add(m.number, 2, out=m.number), "unread": lambda m, x: m.other.mul_(1.5),
    "attribute": lambda m, x: m.plain.mul_(2), "list": lambda m, x: torch._foreach_add_([m.number, m.other], 1.0),
}  # fmt: skip


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("draws", [False, True])
@pytest.mark.parametrize("write", NUMBERS)
@pytest.mark.filterwarnings("ignore")
def test_numbers_in_double_precision_are_written(core, door, draws, write) -> None:
    """Dynamo takes such writes for nothing, where the value was looked at. `draws`: trainc.compile goes through it."""

    class Model(nn.Linear):
        def __init__(self):
            super().__init__(6, 4)
            for name in ("number", "other"):
                self.register_buffer(name, torch.ones((), dtype=torch.float64))
            self.plain = torch.ones((), dtype=torch.float64)

        def forward(self, x):
            drawn = random.random() if draws else 1.0
            NUMBERS[write](self, x)
            return super().forward(x) * (1 + self.number + self.plain) * drawn

    found = []
    for way in (lambda module: module, DOORS[door]):
        torch.manual_seed(0)
        random.seed(0)
        model = Model()
        call = way(model)
        for turn in range(3):
            loss = call(torch.randn(2, 6)).sum()
            loss.backward()
            found.append([t.detach().clone() for t in (loss, model.number, model.other, model.plain, model.weight.grad)])
            model.number.add_(0.25 * turn)
    for mine, eagers in zip(found[3:], found[:3], strict=True):
        assert_same(dict(enumerate(mine)), dict(enumerate(eagers)))
