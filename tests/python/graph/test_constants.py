"""Tensors that forward writes out (`torch.tensor(0.5)`): of any type and shape, exact, and fresh at each call as in eager."""

import copy
import itertools
import math

import pytest
import torch
from conftest import DOORS, assert_same, gradients
from torch import nn

import trainc
from trainc.base import records

INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
BIG = 2**53 + 1  # no double is this number


class Written(nn.Module):
    """Gives the tensors of `write()` themselves and what it computes with them."""

    def __init__(self, write):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.write = write

    def forward(self, x):
        h = self.layer(x)
        constants = self.write()
        used = sum((h * c.sum().to(h.dtype)).sum() for c in constants if c.numel())
        return h.square().sum() + used, constants


def nested():
    def inner():
        def innermost():
            return torch.tensor(-2.5)

        return innermost()

    return [inner(), torch.tensor([inner().shape, (1,)][1])]


def changed():
    """Tensors that are written in place after they were made."""
    a, b, c = torch.tensor(1.0), torch.tensor([1.0, 2.0]), torch.tensor([[1, 2], [3, 4]])
    a += 2
    b[0] = 7
    c[:, 1].mul_(3)
    view = b[1:]
    view.add_(0.25)
    return [a, b, c, view]


WRITTEN = {
    "numbers": lambda: [torch.tensor(0.5), torch.tensor(3), torch.tensor(True), torch.tensor(-0.0)],
    "lists": lambda: [torch.tensor([1.0, 2.0]), torch.tensor([[1, 2], [3, 4]]), torch.tensor([True, False])],
    "numbers of each type": lambda: [torch.tensor(3, dtype=d) for d in (*INTEGERS, *FLOATS, torch.bool)],
    "lists of each type": lambda: [torch.tensor([1, 0, 5], dtype=d) for d in (*INTEGERS, *FLOATS, torch.bool)],
    "empty": lambda: [torch.tensor([]), torch.tensor([[]], dtype=torch.int64), torch.zeros(0, 3)],
    "not finite": lambda: [torch.tensor(math.inf), torch.tensor([-math.inf, math.nan]), torch.tensor(math.nan)],
    "big integers": lambda: [torch.tensor(BIG), torch.tensor([BIG, -BIG, 2**63 - 1, -(2**63)]), torch.tensor(-(2**63))],
    "nested": nested,
    "changed": changed,
    "as_tensor": lambda: [torch.as_tensor(0.5), torch.as_tensor([1, 2]), torch.scalar_tensor(4.0)],
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", WRITTEN)
def test_tensors_that_forward_writes(engine, strict, name, door):
    plain = Written(WRITTEN[name])
    ours = DOORS[door](copy.deepcopy(plain))
    for _ in range(2):
        for model in (plain, ours):
            model.zero_grad()
        (loss, given), (wanted_loss, wanted) = [model(torch.ones(2, 3)) for model in (ours, plain)]
        loss.backward(), wanted_loss.backward()
        assert_same(loss, wanted_loss) if loss.isfinite() else None
        for a, b in zip(given, wanted, strict=True):
            assert a.dtype is b.dtype and a.stride() == b.stride() and torch.equal(a.signbit(), b.signbit())
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
        if loss.isfinite():
            assert_same(gradients(ours), {f"{'_orig_mod.' * (door == 'torch')}{k}": g for k, g in gradients(plain).items()})
        with torch.no_grad():  # what one call gave is the caller's to change
            for tensor in itertools.chain(given, wanted):
                tensor.zero_()


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_constants_under_autocast(engine, strict, dtype, door):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            with torch.autocast("cpu", dtype):
                return (self.layer(x) * torch.tensor(0.1)) @ torch.tensor([[0.3], [1.0], [2.0], [-1.0]])

    plain = Scaled()
    ours = DOORS[door](copy.deepcopy(plain))
    x = torch.randn(5, 4)
    got, wanted = ours(x), plain(x)
    assert got.dtype is wanted.dtype is dtype
    assert_same(got, wanted, 2e-2)


def test_constants_in_evaluation_and_in_a_step(core, strict):
    plain = nn.Sequential(Written(WRITTEN["changed"]))
    ours = trainc.compile(copy.deepcopy(plain))
    x = torch.ones(2, 3)
    with torch.no_grad():
        for _ in range(3):
            assert_same(ours(x)[0], plain(x)[0])
    stepped = copy.deepcopy(plain)
    optimizers = [torch.optim.SGD(m.parameters(), lr=1e-3) for m in (stepped, plain)]

    @trainc.train_step
    def step(x):
        loss = stepped(x)[0]
        optimizers[0].zero_grad()
        loss.backward()
        optimizers[0].step()
        return loss

    for _ in range(2):
        loss = plain(x)[0]
        optimizers[1].zero_grad(), loss.backward(), optimizers[1].step()
        assert_same(step(x), loss.detach())
    assert_same(dict(stepped.named_parameters()), dict(plain.named_parameters()))
    assert records.of(ours)[0].engine == "core"


# ---- integers that no double is ---------------------------------------------------------------------------------------

EXACT = {
    "add": lambda x: x + BIG,
    "sub": lambda x: BIG - x,
    "mul": lambda x: x * BIG,
    "remainder": lambda x: x % BIG,
    "floor_divide": lambda x: (x * 4) // BIG,
    "trunc_divide": lambda x: torch.div(x * 4, BIG, rounding_mode="trunc"),
    "compare": lambda x: torch.stack([x == BIG, x < BIG, x >= BIG, x != BIG]),
    "bits": lambda x: (x & BIG) | (x ^ BIG),
    "where": lambda x: torch.where(x > 0, x, BIG),
    "masked_fill": lambda x: x.masked_fill(x > BIG, -BIG),
    "clamp": lambda x: x.clamp(-BIG, BIG),
    "clamp_min": lambda x: x.clamp_min(BIG),
    "full": lambda x: torch.full((3,), BIG) + x.sum(),
    "full_like": lambda x: torch.full_like(x, BIG),
    "new_full": lambda x: x.new_full((2,), -BIG),
    "arange": lambda x: torch.arange(BIG, BIG + 5) + x[:1],
    "arange step": lambda x: torch.arange(-BIG, -BIG + 9, 2) + x[:1],
    "pad": lambda x: nn.functional.pad(x, (1, 1), value=BIG),
    "fill": lambda x: x.clone().fill_(BIG),
    "assign": lambda x: x.clone().index_fill(0, torch.tensor([0]), BIG),
    "add alpha": lambda x: torch.add(x, x, alpha=BIG),
    "maximum": lambda x: torch.maximum(x, torch.tensor(BIG)),
    "pow": lambda x: torch.pow(x, 3),
    "neg": lambda x: -(x + BIG),
    "abs": lambda x: (x - 2 * BIG).abs(),
    "sum": lambda x: (x + BIG).sum() - 3 * BIG,
    "cumsum": lambda x: (x + BIG).cumsum(0),
    "sort": lambda x: (x + BIG).sort(descending=True).values,
}


class Exact(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.function = function

    def forward(self, x):
        return self.weight * 2, self.function(x)


@pytest.mark.parametrize("name", EXACT)
def test_integers_are_exact(core, strict, name):
    plain = Exact(EXACT[name])
    ours = trainc.compile(copy.deepcopy(plain))
    for x in (torch.tensor([0, 1, -3, BIG, -BIG, BIG - 1, BIG + 1]), torch.tensor([2**62 + 1, 5, 2**61 + 3])):
        loss, got = ours(x)
        loss.backward()
        assert torch.equal(got, plain(x)[1]), name
