"""Sums of any length over any axes lie as near to the fp64 truth as eager's, in the same order whatever the number of threads."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable

import pytest
import torch
from plans import compiled_text
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from trainc.torch.graph import wire

GEOMEAN, WORST = 1.05, 2.0
RESULTS = 100  # errors are gathered over so many results at least: of few, the ratio is luck


@dataclasses.dataclass(frozen=True)
class Kind:
    fn: Callable  # of a tensor and the axes to be folded
    one_axis: bool = False  # the last of them alone
    geomean: float = GEOMEAN


def cross_entropy(x: torch.Tensor, axis: int) -> torch.Tensor:
    rows = x.movedim(axis, -1).flatten(0, -2)
    return F.cross_entropy(rows, torch.arange(rows.shape[0]) % rows.shape[1], reduction="none")


def gradients_of_a_bias(x: torch.Tensor, axes: list[int]) -> torch.Tensor:
    bias = torch.zeros([1 if k in axes else n for k, n in enumerate(x.shape)], dtype=x.dtype, requires_grad=True)
    return torch.autograd.grad((torch.zeros_like(x) + bias) * 1.5, bias, x)[0]


KINDS = {
    "sum": Kind(torch.sum),
    "mean": Kind(torch.mean),
    "norm": Kind(lambda x, axes: torch.linalg.vector_norm(x, dim=axes)),
    "one_norm": Kind(lambda x, axes: torch.linalg.vector_norm(x, 1, dim=axes)),
    # eager is in float64 to the end and rounds once; here the sum and the quotient are rounded
    "var": Kind(torch.var, geomean=1.7),
    "bias": Kind(gradients_of_a_bias),
    "logsumexp": Kind(torch.logsumexp),
    "softmax": Kind(torch.softmax, one_axis=True),
    "log_softmax": Kind(torch.log_softmax, one_axis=True),
    "cross_entropy": Kind(cross_entropy, one_axis=True),
    "cumsum": Kind(torch.cumsum, one_axis=True),
}
LENGTHS = [2, 3, 7, 13, 33, 64, 65, 127, 255, 257, 768, 1001, 1023, 2049, 4093, 10007, 31397, 65537, 99991]


def layout(n: int, one_axis: bool, chance: random.Random) -> tuple[list[int], list[int]]:
    """A shape and the axes to be folded, n elements long together, or nearly."""
    few, some = chance.randint(1, 3), min(chance.choice([1, 2, 5, 17, 40]), 200_000 // n)
    side = max(1, n // 64)
    forms = [([few, n], [1]), ([n, some], [0]), ([few, n, 3], [1])]
    if not one_axis:
        forms += [([n], [0]), ([64, few, side], [0, 2]), ([chance.randint(1, 9), n // 3 + 1], [0, 1])]
        forms += [([5, side, few, 12], [0, 1, 3])]
    return chance.choice(forms)


def compiled(fn: Callable, x: torch.Tensor) -> Callable:
    traced = make_fx(lambda x: [fn(x)], tracing_mode="fake")(x)
    executable = compiled_text(wire.graph_json(traced.graph, "sums"), "sums")
    return lambda x: executable([x])[0]


def error_ratio(kind: Kind, shape: list[int], axes: list[int], dtype: torch.dtype, seed: int) -> float:
    """ours over eager's, root mean square over enough results."""

    def fn(x):
        return kind.fn(x, axes[-1] if kind.one_axis else axes)

    generator = torch.Generator().manual_seed(seed)
    ours = eager = size = 0.0
    model, results = None, 0
    while results < RESULTS:
        x = torch.randn(shape, generator=generator, dtype=torch.float64)
        if seed % 3 == 0:
            x = x.abs() + 0.1
        x = x.to(dtype)
        model = model or compiled(fn, x)
        truth = fn(x.double())
        size += truth.square().sum().item()
        ours += (model(x).double() - truth).square().sum().item()
        eager += (fn(x).double() - truth).square().sum().item()
        results += truth.numel()
    tiny = (0.05 * torch.finfo(dtype).eps) ** 2 * size  # below the rounding of the result alone
    return math.sqrt((ours + tiny) / (eager + tiny))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", KINDS)
def test_error(name: str) -> None:
    kind, ratios = KINDS[name], {}
    for i, n in enumerate(LENGTHS):
        shape, axes = layout(n, kind.one_axis, random.Random(f"{name} {n}"))
        ratios[f"{shape} over {axes}"] = error_ratio(kind, shape, axes, torch.float32, i)
    geomean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
    worst = max(ratios, key=ratios.get)
    print(f"\n{name}: geomean {geomean:.3f}, worst {ratios[worst]:.2f} ({worst})")
    assert geomean <= kind.geomean
    assert ratios[worst] <= WORST, worst


@pytest.mark.parametrize("name", ["sum", "mean", "cross_entropy", "cumsum"])
def test_halves_are_rounded_once(name: str) -> None:
    """As near as eager's, which sums them in fp32; an error of a second rounding would be seen at once."""
    kind = KINDS[name]
    for i, n in enumerate([65, 1023, 10007, 65536]):
        for dtype in (torch.bfloat16, torch.float16):
            shape, axes = layout(n, kind.one_axis, random.Random(f"{name} {n}"))
            assert error_ratio(kind, shape, axes, dtype, 3 * i) <= 1.02, (n, dtype)


def test_cumsum_is_eagers_to_the_bit() -> None:
    """Both keep the running sum of float32 in float64."""
    for shape, axis in (([10007], 0), ([3, 4001], 1), ([1001, 7], 0), ([2, 513, 3], 1)):
        x = torch.randn(shape)
        assert torch.equal(compiled(lambda x, axis=axis: x.cumsum(axis), x)(x), x.cumsum(axis))


def test_order_does_not_depend_on_threads() -> None:
    before = torch.get_num_threads()
    try:
        for i, n in enumerate(LENGTHS):
            chance = random.Random(i)
            shape, axes = layout(n, False, chance)
            x = torch.randn(shape)
            model = compiled(lambda x, axes=axes: x.sum(axes), x)
            found = []
            for threads in (1, 2, 2):
                torch.set_num_threads(threads)
                found.append(model(x))
            assert torch.equal(found[0], found[1]) and torch.equal(found[1], found[2]), (shape, axes)
    finally:
        torch.set_num_threads(before)
