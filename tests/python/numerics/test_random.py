"""Masks and generator state against torch, live; and against the recorded vectors of both generators."""

from pathlib import Path

import numpy as np
import pytest
import torch

import trainc
from trainc import _core

MASKS = Path(__file__).parents[2] / "data" / "masks.txt"
VECTORS = [line.split() for line in MASKS.read_text().splitlines() if line[0] != "#"]


def state() -> bytes:
    return torch.get_rng_state().numpy().tobytes()


def fnv(data: bytes) -> int:
    value = 14695981039346656037
    for byte in data:
        value = ((value ^ byte) * 1099511628211) & (2**64 - 1)
    return value


@pytest.mark.parametrize("seed", [0, 1, 2**40 + 7])
@pytest.mark.parametrize("skip", [0, 1, 5, 623, 624, 1000])
@pytest.mark.parametrize(
    ("numel", "p"), [(1, 0.5), (7, 0.9), (311, 1 / 3), (312, 0.5), (313, 0.25), (5000, 1e-3), (100_003, 0.9)]
)
def test_masks_and_state_are_eagers(seed: int, skip: int, numel: int, p: float) -> None:
    torch.manual_seed(seed)
    for _ in range(skip):
        torch.rand(1)
    mask, after = _core.bernoulli(state(), numel, p)
    wanted = torch.empty(numel, dtype=torch.bool).bernoulli_(p)
    assert mask.dtype == np.bool_
    assert np.array_equal(mask, wanted.numpy())
    assert after == state()


@pytest.mark.parametrize("p", [0.1, 0.5, 0.3])
def test_native_dropout(p: float) -> None:
    torch.manual_seed(3)
    mask, after = _core.bernoulli(state(), 6 * 257, 1.0 - p)
    _, wanted = torch.ops.aten.native_dropout(torch.ones(6, 257), p, True)
    assert np.array_equal(mask.reshape(6, 257), wanted.numpy())
    assert after == state()


@pytest.mark.parametrize("p", [0.1, 0.5, 0.3, 0.0, 1.0])
def test_functional_dropout(p: float) -> None:
    """p = 0 and p = 1 draw nothing, in eager and here."""
    torch.manual_seed(4)
    mask, after = _core.bernoulli(state(), 3 * 1001, 1.0 - p)
    out = torch.nn.functional.dropout(torch.ones(3, 1001), p, True)
    assert np.array_equal(mask.reshape(3, 1001), out.numpy() != 0)
    assert after == state()


def test_the_cached_normal_survives() -> None:
    torch.manual_seed(5)
    torch.randn(1)  # leaves the second of a pair in the generator's state
    _, after = _core.bernoulli(state(), 100, 0.5)
    torch.empty(100, dtype=torch.bool).bernoulli_(0.5)
    assert after == state()
    torch.set_rng_state(torch.frombuffer(bytearray(after), dtype=torch.uint8))


def test_empty_draws_nothing() -> None:
    mask, after = _core.bernoulli(state(), 0, 0.5)
    assert mask.size == 0
    assert after == state()


@pytest.mark.parametrize("vector", [v for v in VECTORS if v[0] == "twister"], ids=" ".join)
def test_recorded_twister(vector: list[str]) -> None:
    seed, skip, numel, ones = (int(vector[i]) for i in (1, 2, 4, 5))
    torch.manual_seed(seed)
    for _ in range(skip):
        torch.rand(1)
    mask, after = _core.bernoulli(state(), numel, float(vector[3]), vendor="amd")
    assert (int(mask.sum()), fnv(mask.tobytes()), fnv(after)) == (ones, int(vector[6], 16), int(vector[7], 16))


def test_intel_takes_one_draw_as_its_seed() -> None:
    """What the masks are for a seed is in the C++ tests; here: the definition once more, in NumPy."""
    torch.manual_seed(3)
    before = state()
    mask, after = _core.bernoulli(before, 50_000, 0.9, vendor="intel")
    seed = int(np.random.RandomState(3).randint(0, 2**32, dtype=np.uint32))
    torch.rand(1)
    assert after == state()
    x, values = seed % (2**31 - 1), []
    for _ in range(50_000):
        values.append(x)
        x = x * 1132489760 % (2**31 - 1)
    assert np.array_equal(mask, np.float32(values) * np.float32(2.0**-31) < np.float32(0.9))


def test_what_is_no_state_is_refused() -> None:
    with pytest.raises(_core.InternalError, match="5056"):
        _core.bernoulli(b"abc", 1, 0.5)
    with pytest.raises(_core.UserError, match="vendor"):
        _core.bernoulli(state(), 1, 0.5, vendor="arm")
    with pytest.raises(ValueError, match="p lie in"):
        _core.bernoulli(state(), 1, 1.5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("p", [0.1, 0.3, 0.5])
def test_what_is_kept_is_scaled_as_eager_scales_it(strict, dtype: torch.dtype, p: float) -> None:
    """1/(1-p) is rounded to the type of what is dropped: in bf16, 1.109375 for p = 0.1."""
    x, gradient = torch.randn(33, 65).to(dtype).requires_grad_(), torch.randn(33, 65).to(dtype)
    found = []
    for model in (torch.nn.Dropout(p), trainc.compile(torch.nn.Dropout(p))):
        torch.manual_seed(3)
        y = model(x)
        found.append((y, *torch.autograd.grad(y, x, gradient)))
    for got, wanted in zip(*reversed(found), strict=True):
        assert torch.equal(got, wanted)
