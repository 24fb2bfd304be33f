"""A case of op_cases.py as the compiler is given it, and what is compared with eager."""

from __future__ import annotations

import functools

import torch
from op_cases import Case
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten

from trainc.torch.graph import wire


def leaves(out) -> list[torch.Tensor]:
    return [leaf for leaf in tree_flatten(out)[0] if isinstance(leaf, torch.Tensor)]


@functools.cache
def traced(case: Case) -> torch.fx.GraphModule:
    """The case's ATen operations as they were called, with the types they give."""
    return make_fx(lambda *x: leaves(case.fn(*x)), tracing_mode="fake")(*case.tensors())


@functools.cache
def graph_json(case: Case) -> str:
    return wire.graph_json(traced(case).graph, case.name)


def eager(case: Case, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    torch.manual_seed(7)
    return leaves(case.fn(*tensors))


def assert_near(got: torch.Tensor, want: torch.Tensor, ulps: float, slack: float, what: str) -> None:
    assert got.shape == want.shape, what
    if not want.dtype.is_floating_point:
        assert torch.equal(got.to(want.dtype), want), what
        return
    epsilon = torch.finfo(want.dtype).eps
    got, want = got.double(), want.double()
    assert torch.equal(got.isnan(), want.isnan()), what
    finite = want.isfinite()
    infinite = ~finite & ~want.isnan()
    assert torch.equal(got[infinite], want[infinite]), what
    if not finite.any():
        return
    difference = (got - want).abs()[finite]
    bound = (
        epsilon * (ulps * want[finite].abs() + slack * want[finite].abs().max().clamp(min=1)) + torch.finfo(torch.float32).tiny
    )
    worst = (difference / bound).argmax()
    times = difference[worst] / bound[worst]
    assert times <= 1, f"{what}: {got[finite][worst]:.9g}, eager {want[finite][worst]:.9g}, {times:.1f} x the bound"
