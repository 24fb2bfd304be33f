"""What a compiled call gives lies in memory as eager's: parts of arguments and of other results, strides, copies."""

import copy

import pytest
import torch
from conftest import DOORS, assert_same, gradients
from torch import nn

import trainc
from trainc.base import records


def layout(results, given):
    """Of each result: shape, strides, and which tensors it shares memory with, from where on."""
    told = []
    tensors = [x for x in results if x is not None]
    for x in tensors:
        shared = [i for i, y in enumerate([*given, *tensors]) if y.untyped_storage()._cdata == x.untyped_storage()._cdata]
        told.append((list(x.shape), x.stride(), [i for i in shared if i < len(given)], len(shared)))
        if any(i < len(given) for i in shared):
            told.append(x.storage_offset())
    return told


def model(function):
    class Model(nn.Module):
        def forward(self, *args):
            results = function(*args)
            return tuple(results) if isinstance(results, (list, tuple)) else (results,)

    return Model()


PROGRAMS = {  # of those with `x @ x`, the backward holds the product
    "chunk": lambda x: x.chunk(2),
    "chunk by columns": lambda x: x.chunk(3, 1),
    "one of them": lambda x: x.split(2)[1],
    "unbind": lambda x: x.unbind(1),
    "tensor_split": lambda x: x.tensor_split(3),
    "hsplit": lambda x: x.hsplit(2),
    "a part of a part": lambda x: x.unbind(0)[1][1:4],
    "beside a loss": lambda x: (*x.chunk(2), (x * x).sum()),
    "of what is made": lambda x: (x * 2).chunk(2),
    "of what is made, by columns": lambda x: (x * 2).chunk(3, 1),
    "with what it is of": lambda x: (lambda y: (y, *y.chunk(2)))(x * 2),
    "single": lambda x: (x[1], x.t(), x.view(-1)) if x.is_contiguous() else (x[1], x.t()),
    "scattered": lambda x: torch.diagonal_scatter(x, torch.ones(min(x.shape))),
    "copies": lambda x: (x.clone(), *(y.clone() for y in x.chunk(2))),
    "single, with what it is of": lambda x: (lambda y: (y[0], y, y.t()))(x * 2),
    "single, of what is made": lambda x: (lambda y: (y[:4], y[2:], y.sum()))(x * 2),
    "detached, and moved": lambda x: (lambda y: (y.square().sum(), y.detach().t(), y.detach()[0]))(x @ x),
    "expanded, and held": lambda x: (lambda y: (y.square().sum(), y.t()[:, :1].expand(-1, 4)))(x @ x),
    "detached": lambda x: (lambda y: (y.sum(), y.detach(), y.detach()[0]))(x * 2),
    "expanded": lambda x: (x.mean(0, keepdim=True).expand(3, -1), x.sum().expand(2), (x * 2).t()[:, :1].expand(-1, 4)),
    "expanded, and moved": lambda x: (x.sum(1)[:, None].expand(-1, 2).t(), (x * x)[None].expand(2, -1, -1)[:, 1:], x.exp()),
    "expanded, with what it is of": lambda x: (lambda y: (y, y.expand(2, -1)))(x.sum(0)),
    "twice": lambda x: (*x.chunk(2), *x.chunk(2)),
}


def arguments(how):
    torch.manual_seed(1)
    return torch.randn(6, 6) if how == "dense" else torch.randn(12, 12)[::2, ::2] if how == "strided" else torch.randn(6, 6).t()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("how", ["dense", "strided", "transposed"])
@pytest.mark.parametrize("gradient", [True, False])
@pytest.mark.parametrize("name", PROGRAMS)
def test_results_lie_where_eagers_do(strict, core, name, gradient, how):
    wanted, compiled = model(PROGRAMS[name]), trainc.compile(model(PROGRAMS[name]))
    for _ in range(2):  # the first call without a gradient is eager's
        x, y = (arguments(how).requires_grad_(gradient) for _ in range(2))
        want, got = wanted(x), compiled(y)
        for g, w in zip(got, want, strict=True):
            torch.testing.assert_close(g, w)
            assert g.requires_grad == w.requires_grad
        if "of what is made" in name:  # parts of what nobody is given have memory of their own
            assert [g.stride() for g in got] == [w.stride() for w in want]
        else:
            assert layout(got, [y]) == layout(want, [x])
        if gradient:
            sum((i + 1) * t.sum() for i, t in enumerate(want)).backward()
            sum((i + 1) * t.sum() for i, t in enumerate(got)).backward()
            torch.testing.assert_close(x.grad, y.grad)


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != "copies" and "expanded" not in name])
def test_writing_into_a_part_writes_into_the_whole(strict, name):
    wanted, compiled = model(PROGRAMS[name]), trainc.compile(model(PROGRAMS[name]))
    for _ in range(3):
        x, y = arguments("dense"), arguments("dense")
        want, got = wanted(x), compiled(y)
        for i, (g, w) in enumerate(zip(got, want, strict=True)):
            g.add_(i + 1)
            w.add_(i + 1)
        torch.testing.assert_close(y, x)
        torch.testing.assert_close(got, want)


def test_a_part_cannot_be_written_where_eager_cannot(strict):
    """One of several views by one operation: autograd could not say what becomes of the others."""
    for make in (model, lambda f: trainc.compile(model(f))):
        x = torch.randn(4, 4, requires_grad=True)
        part = make(PROGRAMS["chunk"])(x * 1)[0]
        with pytest.raises(RuntimeError, match="is being modified inplace"):
            part.add_(1)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("made_so", [lambda x: x.contiguous(), lambda x: x * 1])
def test_what_the_framework_runs_is_given_dense_what_the_program_made_so(door, made_so, strict):
    """`embedding_bag` reads offsets and indices by their memory: between the elements of these stand other numbers."""

    class Bag(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(20, 5, generator=torch.Generator().manual_seed(1)))

        def forward(self, indices, offsets):
            return torch.ops.aten._embedding_bag(self.weight, made_so(indices), made_so(offsets))[0]

    table = torch.tensor([[1, 7], [2, 8], [3, 9], [4, 10], [5, 11]])
    offsets = torch.tensor([[0, 1], [3, 2]])
    plain = Bag()
    ours, found = copy.deepcopy(plain), []
    call = DOORS[door](ours)
    for run in (call, plain):
        result = run(table[:, 0], offsets[:, 0])
        found.append(result.detach())
        result.sum().backward()
    assert_same(gradients(ours), gradients(plain))
    torch.testing.assert_close(found[0], found[1])


def test_a_leaf_that_the_program_makes_gets_its_gradient():
    class Model(nn.Linear):
        def forward(self, x):
            noise = torch.ones(3, 4, requires_grad=True)
            return (super().forward(x) * noise).sum(), noise

    plain, found = Model(4, 4), []
    ours = trainc.compile(copy.deepcopy(plain))
    for model in (plain, ours):
        for _ in range(2):
            loss, noise = model(torch.ones(3, 4))
            loss.backward()
        found.append((noise.grad, noise.is_leaf))
    torch.testing.assert_close(*found)


def test_a_result_that_is_made_in_inference_mode_is_such():
    class Model(nn.Linear):
        def forward(self, x):
            with torch.inference_mode():
                return super().forward(x)

    assert trainc.compile(Model(4, 4))(torch.ones(3, 4)).is_inference()


@pytest.mark.parametrize("view", ["t", "detach", "view_as", "part"])
def test_a_view_of_what_is_made_in_inference_mode_is_such(view):
    ways = {"t": torch.t, "detach": torch.detach, "view_as": lambda v: v.view_as(v), "part": lambda v: v[0]}

    class Model(nn.Linear):
        def forward(self, x):
            with torch.inference_mode():
                made = x * 2
            return ways[view](made), super().forward(x), made[0] + 1

    found = [[t.is_inference() for t in model(torch.ones(3, 4))] for model in (Model(4, 4), trainc.compile(Model(4, 4)))]
    assert found[1] == found[0] == [True, False, False]


def test_a_write_to_a_view_of_what_is_made_in_inference_mode():
    class Model(nn.Linear):
        def forward(self, x, outside):
            with torch.inference_mode():
                made = x * 2
                made[0].add_(1)
            if outside:
                made[0].add_(1)
            return super().forward(made.clone())

    plain = Model(4, 4)
    ours = trainc.compile(copy.deepcopy(plain))
    torch.testing.assert_close(ours(torch.ones(3, 4), False), plain(torch.ones(3, 4), False))
    assert [record.route for record in records.of(ours)] == ["compiled"]
    for model in (plain, ours):
        with pytest.raises(RuntimeError, match="Inplace update to inference tensor outside InferenceMode"):
            model(torch.ones(3, 4), True)
