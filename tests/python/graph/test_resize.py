"""F.interpolate: random sizes and factors, each mode, two memory formats; results and gradients are eager's,
at infinities and NaN, too."""

import copy
import random
import warnings

import pytest
import torch
from conftest import assert_same
from torch import nn
from torch.nn import functional as F

import trainc

INF, NAN = float("inf"), float("nan")
MODES = {1: ["nearest", "nearest-exact", "linear", "area"], 2: ["nearest", "nearest-exact", "bilinear", "bicubic", "area"],
         3: ["nearest", "nearest-exact", "trilinear", "area"]}  # fmt: skip
FACTORS = [0.5, 0.7, 1.0, 1.1, 1.25, 1.3, 1.9, 2.0, 2.2, 2.3, 3.0]
CASES = 30


class Resized(nn.Module):
    """Resizes one tensor after the other, `how`: (dimensions, keyword arguments of F.interpolate)."""

    def __init__(self, how):
        super().__init__()
        self.how = how

    def forward(self, *given):
        return [F.interpolate(x * 1.5, **kwargs) for x, kwargs in zip(given, self.how, strict=True)]


def random_cases(seed):
    chance = random.Random(seed)
    how, given = [], []
    while len(how) < CASES:
        dims = chance.choice([1, 2, 2, 3])
        mode, sizes = chance.choice(MODES[dims]), [chance.randint(1, 7) for _ in range(dims)]
        factors = [chance.choice(FACTORS) for _ in sizes]
        if any(int(size * factor) < 1 for size, factor in zip(sizes, factors, strict=True)):
            continue
        corners = {"align_corners": True} if "linear" in mode and chance.random() < 0.2 else {}
        how.append({"scale_factor": tuple(factors), "mode": mode, **corners})
        x = torch.randn(2, 3, *sizes)
        if dims > 1 and chance.random() < 0.4:
            x = x.contiguous(memory_format=torch.channels_last if dims == 2 else torch.channels_last_3d)
        given.append(x.requires_grad_())
    return how, given


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(4))
def test_random_sizes_and_factors(engine, strict, seed):
    torch.manual_seed(seed)
    how, given = random_cases(seed)
    plain = Resized(how)
    ours, theirs = trainc.compile(copy.deepcopy(plain)), [x.detach().clone().requires_grad_() for x in given]
    for kwargs, mine, its in zip(how, ours(*given), plain(*theirs), strict=True):
        assert mine.shape == its.shape and torch.allclose(mine, its, 1e-5, 1e-5), kwargs
        mine.sum().backward(retain_graph=True), its.sum().backward()
    assert_same([x.grad for x in given], [x.grad for x in theirs], 1e-5)


def test_infinities_and_nan(engine, strict):
    """What a weight of 0 multiplies, and what it does not: each result and gradient is infinite or NaN where eager's is."""
    torch.manual_seed(8), random.seed(8)
    how, given = random_cases(8)
    for x in given:
        place_some(x, [INF, -INF, NAN])
    plain = Resized(how)
    ours, theirs = trainc.compile(copy.deepcopy(plain)), [x.detach().clone().requires_grad_() for x in given]
    mine, its = ours(*given), plain(*theirs)
    came_back = [place_some(torch.randn_like(result), [INF, NAN]) for result in its]
    torch.autograd.backward(mine, came_back), torch.autograd.backward(its, came_back)
    for kwargs, a, b, x, y in zip(how, mine, its, given, theirs, strict=True):
        assert torch.allclose(a, b, 1e-5, 1e-5, equal_nan=True), kwargs
        assert torch.allclose(x.grad, y.grad, 1e-5, 1e-5, equal_nan=True), kwargs


@torch.no_grad()
def place_some(x, values):
    """Each of `values` at a random place of a channel, as far as there is room."""
    for value in values:
        x[0, 1][tuple(random.randrange(size) for size in x.shape[2:])] = value
    return x


def test_bytes(engine, strict):
    """Eager resizes them in fixed point."""
    torch.manual_seed(3)
    how = [{"size": (7, 9), "mode": "bilinear"}, {"scale_factor": 0.7, "mode": "bilinear"}]
    given = [torch.randint(256, (1, 3, 6, 5), dtype=torch.uint8) for _ in how]
    plain = Bytes(how)
    ours = trainc.compile(copy.deepcopy(plain))
    with torch.no_grad():
        ours(*given)
        assert_same(ours(*given), plain(*given), 0)


class Bytes(Resized):
    def forward(self, *given):
        return [F.interpolate(x, **kwargs) for x, kwargs in zip(given, self.how, strict=True)]


def test_a_view_that_is_resized_as_another(core):
    """A trace leaves it as it is."""

    class Resizes(torch.nn.Module):
        def forward(self, y):
            v = (y * 2).view(-1)
            v.resize_as_(y)
            return v.sum(0), v

    y = torch.linspace(0, 1, 12).reshape(4, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", trainc.TraincWarning)
        got = trainc.compile(Resizes())(y)
    for result, wanted in zip(got, Resizes()(y), strict=True):
        torch.testing.assert_close(result, wanted)
