"""Every optimizer after a gradient that is NaN, infinite, zero of either sign, denormal or huge: eager's parameters and states.

Eager's kernels end with scalar code that is not always the formula of its whole vectors, which are the rule
(docs/numerics.md): here eager has whole vectors alone. Left out: the sign of a zero after a denormal gradient, for eager rounds
a product and a sum once (FMA), and we twice.
"""

import itertools
import math

import pytest
import special_values as special
import torch
from optimizer_variants import FLAGS
from torch import nn
from torch.optim import Adafactor

import trainc
from trainc.base import records

BOUNDS = {torch.float32: 2e-6, torch.float64: 4e-15}
STEPS = 5
WHEN = [(0,), (1,), (2,), (1, 2), range(STEPS)]  # the steps whose gradient is special
USUAL = [1.0, -2.0]
STARTS = [1.0, -0.5, 0.0, -0.0]
ELEMENTWISE = [make for make in FLAGS if make is not Adafactor]


def values(dtype):
    info = torch.finfo(dtype)
    denormal, huge = info.tiny * info.eps, info.max * 0.9
    return [math.nan, math.inf, -math.inf, 0.0, -0.0, denormal, -denormal, huge, -huge]


def variants(make):
    """Those of the table, each in every mode that eager has for it."""
    defaults = make([nn.Parameter(torch.ones(1))]).defaults
    modes = [{"foreach": False}, {"foreach": True}, *([{"fused": True}] if "fused" in defaults else [])]
    settings = [{key: value for key, value in flags.items() if key not in ("foreach", "fused")} for flags in FLAGS[make]]
    every = [{"lr": 0.1, **each, **mode} for each in settings for mode in modes]
    return [flags for i, flags in enumerate(every) if flags not in every[:i]]


def underflowed(gradients):
    past = torch.stack(gradients)
    return ((past != 0) & (past.abs() < torch.finfo(past.dtype).tiny)).any(0)


def wrong(got, want, underflow):
    """Where a number is not of eager's class or not near it."""
    bad = (got.isnan() != want.isnan()) | ((got.isinf() | want.isinf()) & (got != want) & ~got.isnan())
    bad |= (got - want).abs() > BOUNDS.get(want.dtype, 0) * want.abs().clamp(min=1)
    signs = (got == 0) & (want == 0) & (got.signbit() != want.signbit())
    return bad | signs & torch.logical_not(torch.as_tensor(underflow))


def assert_steps(make, flags, starts, gradients, rows, shown):
    """`gradients`: by step, of each of `starts`. `rows`: of each compiled parameter, whose part it is, and which."""
    plain = nn.ParameterList([start.clone() for start in starts])
    ours = nn.ParameterList([starts[i][where].clone() for i, where in rows])
    theirs, mine = make(plain.parameters(), **flags), make(ours.parameters(), **flags)
    trainc.compile(ours, mine)
    for step in range(STEPS):
        for p, gradient in zip(plain, gradients[step], strict=True):
            p.grad = gradient.clone()
        for p, (i, where) in zip(ours, rows, strict=True):
            p.grad = gradients[step][i][where].clone()
        theirs.step()
        mine.step()
        for p, (i, where) in zip(ours, rows, strict=True):
            underflow = underflowed([each[i][where] for each in gradients[: step + 1]])
            pairs = {"parameter": (p.detach(), plain[i].detach()[where])}
            for key, value in theirs.state[plain[i]].items():
                pairs[key] = (mine.state[p][key], value[where] if value.dim() else value)
            for key, (got, want) in pairs.items():
                bad = wrong(got, want, underflow if want.shape == p.shape else False)
                told = f"{flags}, step {step}, {key}" + (f" {shown(i, where, bad)}" if bad.shape == p.shape else "")
                assert not bad.any(), f"{told}: {got[bad][:3]}, eager {want[bad][:3]}"
    assert records.of(mine) and all(record.optimizer is not None for record in records.of(mine))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("make", ELEMENTWISE, ids=lambda make: make.__name__)
def test_steps_after_a_special_gradient(engine, strict, make, dtype):
    made = [
        (start, *(value if i in when else usual for i in range(STEPS)))
        for value, when, usual, start in itertools.product(values(dtype), WHEN, USUAL, STARTS)
    ]
    table = special.whole(torch.arange(len(made)))
    start, *gradients = (torch.tensor(column, dtype=dtype)[table] for column in zip(*made, strict=True))
    few = torch.arange(0, len(made), 19)  # of each special number
    rows = [(0, torch.arange(len(table))), (0, few), (0, few[:1])]
    for flags in variants(make):
        assert_steps(
            make, flags, [start], [[each] for each in gradients], rows,
            lambda _, where, bad: f"of {[made[table[k]] for k in where[bad][:3]]}",
        )  # fmt: skip


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
def test_adafactor_after_a_special_gradient(engine, strict, dtype):
    """One special number in a parameter, for it reaches the others."""
    cases = list(itertools.product(values(dtype), [(1,), (1, 2)], [(4,), (2, 3)]))
    starts = [torch.linspace(-1, 1, math.prod(shape), dtype=dtype).view(shape) for _, _, shape in cases]
    usual = [start + 0.25 for start in starts]
    gradients = [[each.clone() for each in usual] for _ in range(STEPS)]
    for i, (value, when, _) in enumerate(cases):
        for step in when:
            gradients[step][i].view(-1)[1] = value
    for flags in variants(Adafactor):
        rows = [(i, ...) for i in range(len(cases))]
        assert_steps(Adafactor, flags, starts, gradients, rows, lambda i, *_: cases[i])
