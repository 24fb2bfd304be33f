"""Memory that several look at: results of one memory, wrapped tensors, none at all, what a backward writes to. Eager's numbers.

Random programs make a few tensors and views of them, of which some are results; then one result after another is written to.
"""

import random

import pytest
import torch
from conftest import Calls
from torch import nn

import trainc
from trainc.base import records

VIEWS = [
    ("transposed", lambda x: x.t()), ("flat", lambda x: x.reshape(-1) if x.is_contiguous() else x), ("row", lambda x: x[0]),
    ("rows", lambda x: x[1:]), ("columns", lambda x: x[..., ::2]), ("detached", lambda x: x.detach()),
    ("expanded", lambda x: x.unsqueeze(0).expand(3, *x.shape)), ("half", lambda x: x.chunk(2)[0]),
    ("itself", lambda x: x), ("squared", lambda x: x[:, None].squeeze(1)),
]  # fmt: skip
MADE = [
    lambda x: x * 2, lambda x: x.sum(1, keepdim=True).expand(4, 6), lambda x: x.sort(0)[0], lambda x: x @ x.t(),
    lambda x: x.clone(),
]  # fmt: skip


def program_of(seed: int, grad: bool):
    """(function of a 4 x 6 tensor, text)"""
    draw = random.Random(seed)
    steps = []  # (made or viewed, of which tensor, with what)
    for i in range(draw.randint(3, 6)):
        if i == 0 or draw.random() < 0.25:
            steps.append((True, 0, draw.randrange(len(MADE))))
        else:
            # With gradients, parts of a list may not be written to in eager either.
            steps.append((False, draw.randint(1, i), draw.choice([v for v in VIEWS if not (grad and v[0] == "half")])))
    chosen = sorted(draw.sample(range(1, len(steps) + 1), draw.randint(2, len(steps))), key=lambda _: draw.random())

    def run(x):
        values = [x]
        for made, source, how in steps:
            values.append(MADE[how](x) if made else how[1](values[source]) if values[source].dim() == 2 else values[source])
        return [values[i] for i in chosen]

    return run, f"{[(s, h if m else h[0]) for m, s, h in steps]} gives {chosen}"


def written_to(results, x, grad):
    """What there is to see of a call and of its results when each has been written to."""
    seen = [t.detach().clone() for t in results] + [torch.tensor([*t.shape, *t.stride()]) for t in results]
    for i, result in enumerate(results):
        try:
            result.mul_(i + 2)
        except RuntimeError:  # elements that share a place
            seen.append(torch.tensor(-1))
        seen += [t.detach().clone() for t in results]
    loss = sum(t.sum() for t in results if t.requires_grad)
    return seen + list(torch.autograd.grad(loss, x)) if grad and torch.is_tensor(loss) else seen


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("door", ["compile", "backend"])
def test_who_writes_into_one_writes_into_the_others(door, grad, monkeypatch):
    monkeypatch.setattr(trainc.config, "fallback", False)
    for seed in range(12):
        run, text = program_of(seed, grad)
        base = torch.randn(4, 6, generator=torch.Generator().manual_seed(seed))
        torch._dynamo.reset()
        call = trainc.compile(Calls(run)) if door == "compile" else torch.compile(run, backend="trainc")
        x, y = (base.clone().requires_grad_(grad) for _ in range(2))
        found, wanted = written_to(call(x), x, grad), written_to(run(y), y, grad)
        assert len(found) == len(wanted), text
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b, msg=lambda m: f"{text}\n{m}")  # noqa: B023


OVERLAPPING = [
    lambda x: x.unfold(1, 3, 1), lambda x: x.unfold(0, 3, 2), lambda x: x.unfold(1, 2, 1).transpose(0, 1),
    lambda x: x.t().unfold(0, 4, 1), lambda x: x.unfold(1, 4, 1).unfold(0, 2, 1), lambda x: x.as_strided((3, 2, 3), (6, 1, 1)),
    lambda x: x[:, :1].expand(4, 5),
]  # fmt: skip


class Overlapping(nn.Module):
    def __init__(self, view, gives):
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6)) if gives == "and a statistic" else nn.Linear(6, 6)
        self.view, self.both = view, gives == "both"

    def forward(self, x):
        h = self.layer(x)
        return [self.view(h), h] if self.both else [self.view(h)]


@pytest.mark.parametrize("door", ["compile", "backend"])
@pytest.mark.parametrize("gives", ["one", "both", "and a statistic"])
def test_elements_that_share_memory_have_gradients_of_their_own(door, gives):
    """What a trace takes for a tangent's layout is its output's; the tangents here have any."""
    for seed, view in enumerate(OVERLAPPING):
        torch._dynamo.reset()
        x, found = torch.randn(4, 6, generator=torch.Generator().manual_seed(seed)), []
        for compiled in (True, False):
            torch.manual_seed(seed)
            model = call = Overlapping(view, gives)
            if compiled:
                call = trainc.compile(model) if door == "compile" else torch.compile(model, backend="trainc")
            given = x.clone().requires_grad_()
            loss = sum((t * torch.randn(t.shape)).tanh().sum() for t in call(given))
            found.append(torch.autograd.grad(loss, [given, *model.parameters()]))
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5, msg=lambda m: f"{seed}\n{m}")  # noqa: B023


def test_a_view_over_a_graph_break(monkeypatch):
    def run(x):
        h = x + 1
        view = h.view(-1)
        torch._dynamo.graph_break()
        h.mul_(2)
        return view

    x = torch.randn(3, 4)
    assert torch.equal(torch.compile(run, backend="trainc")(x), run(x))


def test_views_of_another_type_run_in_pytorch():
    class Complex(nn.Module):
        def forward(self, x):
            z = torch.view_as_complex(x * 2)
            return z, torch.view_as_real(z)

    with pytest.warns(trainc.TraincWarning, match="results share its memory"):
        z, parts = trainc.compile(Complex())(torch.randn(3, 2))
    parts.mul_(2)
    assert torch.equal(torch.view_as_real(z), parts)


@pytest.mark.parametrize("written", [False, True])
def test_tensors_that_wrap_parts_of_one_tensor(written):
    from torch.testing._internal import two_tensor as two

    def run(a, b):
        if written:
            a.mul_(3)
        return a * 2 + b

    def given():
        with two.TwoTensorMode():
            x = torch.ones(4, 4).add(1)
        return x[:2], x[2:]

    (a, b), (c, d) = given(), given()
    found, wanted = torch.compile(run, backend="trainc")(a, b), run(c, d)
    assert torch.equal(found.a, wanted.a) and torch.equal(a.a, c.a)


def test_tensors_without_memory():
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    model = nn.Linear(4, 4)
    call = torch.compile(model, backend="trainc")
    call(torch.ones(2, 4))
    with FakeTensorMode():
        fake = nn.Linear(4, 4)
        result = torch.compile(fake, backend="trainc")(torch.ones(2, 4))
    assert isinstance(result, FakeTensor) and result.shape == (2, 4)
    assert torch.allclose(call(torch.ones(2, 4)), model(torch.ones(2, 4)), atol=1e-6)


def test_a_backward_within_a_compiled_function():
    def run(a, b):
        (a * b).sum().backward()
        return torch.sigmoid(a.grad + b)

    a, b = (torch.randn(4, requires_grad=True) for _ in range(2))
    found = torch.compile(run, backend="trainc")(a, b)
    a.grad = b.grad = None
    assert torch.equal(found, run(a, b))


def test_products_of_several_types_are_eagers_error():
    a, b = torch.ones(2, 3), torch.ones(3, 3, dtype=torch.int64)
    with pytest.warns(trainc.TraincWarning), pytest.raises(RuntimeError, match="same dtype"):
        torch.compile(torch.mm, backend="trainc")(a, b)


@pytest.mark.parametrize("door", ["compile", "backend"])
@pytest.mark.parametrize("in_forward", [False, True])
def test_a_backward_that_writes_to_what_forward_was_given(door, in_forward):
    class Counts(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, count):
            ctx.count = count
            if in_forward:
                count.add_(1)
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            ctx.count.add_(10)
            return gradient * 2, None

    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(2))

        def forward(self, x):
            return Counts.apply(x, self.count)

    model, x = Counting(), torch.ones(2, requires_grad=True)
    call = trainc.compile(model) if door == "compile" else torch.compile(model, backend="trainc")
    with pytest.warns(trainc.TraincWarning, match="its backward writes"):
        out = call(x)
    assert model.count.tolist() == [in_forward] * 2
    out.sum().backward()
    assert model.count.tolist() == [10 + in_forward] * 2 and x.grad.tolist() == [2, 2]


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("door", ["compile", "backend"])
def test_parts_whose_schema_denies_that_they_are_parts(door, grad, strict):
    class Parts(nn.Module):
        def forward(self, x, y):
            return [*x.unsafe_chunk(2), *x.unsafe_split(4, 1), *(y * 2).unsafe_split_with_sizes([1, 3])]

    torch._dynamo.reset()
    call = trainc.compile(Parts()) if door == "compile" else torch.compile(Parts(), backend="trainc")
    found = []
    for run in (call, Parts()):
        x, y = torch.ones(4, 6, requires_grad=grad), torch.ones(4, 6)
        results = run(x, y)
        with torch.no_grad():
            results[0].mul_(3)
        apart = [t.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() for t in results]
        together = [t.untyped_storage().data_ptr() == results[-1].untyped_storage().data_ptr() for t in results]
        found.append((x.detach(), [t.stride() for t in results], apart, together, [t.detach() for t in results]))
    assert torch.equal(found[0][0], found[1][0]) and found[0][1:4] == found[1][1:4]
    assert all(map(torch.equal, found[0][4], found[1][4]))


PLACES = {
    "an argument": lambda x: x.as_strided((2, 2), (1, 2), 1) * 2,
    "by function": lambda x: torch.as_strided(x, (4,), (2,), 0) * 2,
    "a part of one": lambda x: x[1:].as_strided((2, 3), (3, 1), 1) * 2,
    "one of several": lambda x: x.split(2)[1].as_strided((2, 2), (1, 1), 2) * 2,
    "a copy": lambda x: torch.as_strided_copy(x, (2, 2), (1, 2), 3) * 2,
    "in place": lambda x: x.clone().as_strided_((2, 2), (1, 2), 1) * 2,
    "itself": lambda x: x.as_strided((2, 2), (1, 2)) * 2,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("door", ["compile", "backend"])
@pytest.mark.parametrize("name", PLACES)
def test_memory_that_is_read_by_its_places(name, door, grad, core):
    """Where another call's argument begins elsewhere in its storage, other elements are read: as in eager."""
    torch._dynamo.reset()
    run = PLACES[name]
    plain = Calls(run)
    call = trainc.compile(plain) if door == "compile" else torch.compile(run, backend="trainc")
    for begin in (0, 0, 1, 2, 0):
        found = []
        for each in (call, run):
            store = torch.arange(20.0).requires_grad_(grad)
            result = each(store[4 * begin : 4 * begin + 12].view(4, 3))
            found.append((result.detach(), torch.autograd.grad(result.sum(), store)[0] if grad else None))
        assert all(a is b or torch.equal(a, b) for a, b in zip(*found, strict=True)), begin
    if door == "compile":
        assert records.of(plain)[0].route == "compiled"
