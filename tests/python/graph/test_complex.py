"""Complex numbers within a model: PyTorch computes with them, inside the plan, where they are pairs of reals."""

import copy

import pytest
import torch
from conftest import DOORS, assert_same, gradients
from torch import nn

from trainc.base import messages, records
from trainc.torch.doors import backend


class Fourier(nn.Module):
    """FNet: tokens mixed by the real part of a Fourier transform."""

    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(6, 6), nn.LayerNorm(6)

    def forward(self, x):
        return self.norm(x + torch.fft.fftn(self.layer(x), dim=(1, 2)).real).tanh().mean()


class Rotary(nn.Module):
    """Positions as rotations: a complex buffer, products, conjugates."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.register_buffer(
            "turns", torch.polar(torch.ones(5, 3), torch.outer(torch.arange(5.0), torch.tensor([1.0, 0.3, 0.1])))
        )

    def forward(self, x):
        pairs = torch.view_as_complex(self.layer(x).unflatten(-1, (3, 2)))
        turned = torch.view_as_real(pairs * self.turns).flatten(-2)
        return turned.square().mean() + (pairs * self.turns.conj()).imag.sin().mean() + torch.view_as_real(pairs).sum().tanh()


class Spectrum(nn.Module):
    """A filter between two transforms; absolute values and angles."""

    def __init__(self):
        super().__init__()
        self.filter = nn.Parameter(torch.randn(4, 2))

    def forward(self, x):
        f = torch.fft.rfft(x, dim=-1)[..., :4] * torch.view_as_complex(self.filter)
        return torch.fft.irfft(f, n=6).square().mean() + f.abs().sum() + torch.angle(f + 3).cos().mean()


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", [Fourier, Rotary, Spectrum])
def test_complex_numbers_within(engine, strict, kind, dtype, door):
    plain = kind()
    for parameter in plain.parameters():
        parameter.data = parameter.data.to(dtype)
    ours = copy.deepcopy(plain)
    call = DOORS[door](ours)
    backend.compilations.clear()
    for batch in (2, 3, 1):
        x, y = (
            torch.randn(batch, 5, 6, dtype=dtype, generator=torch.Generator().manual_seed(1)).requires_grad_() for _ in range(2)
        )
        wanted, got = plain(x), call(y)
        wanted.backward(), got.backward()
        assert_same(got, wanted)
        assert_same(y.grad, x.grad)
    assert_same(gradients(ours), gradients(plain), 1e-4)
    found = records.of(ours) if door == "trainc" else backend.compilations
    assert {record.engine for record in found} == {engine} and all(record.route != "eager" for record in found)


@pytest.mark.parametrize("door", DOORS)
def test_a_complex_result_is_left_to_pytorch(core, door):
    class Gives(Fourier):
        def forward(self, x):
            return torch.fft.fft(self.layer(x))

    plain = Gives()
    ours = copy.deepcopy(plain)
    call, x = DOORS[door](ours), torch.randn(2, 5, 6)
    with pytest.warns(messages.TraincWarning, match="a result of complex64 is not compiled"):
        got = call(x)
    assert_same(got, plain(x))
    got.abs().sum().backward(), plain(x).abs().sum().backward()
    assert_same(gradients(ours), gradients(plain))


@pytest.mark.skipif(not hasattr(torch, "hash_tensor"), reason="this PyTorch has no operation that gives uint64")
@pytest.mark.parametrize("door", DOORS)
def test_an_unsigned_result_is_left_to_pytorch(core, door):
    """A plan carries uint64 as int64."""

    class Hashes(Fourier):
        def forward(self, x):
            return self.layer(x), torch.hash_tensor(x)

    plain = Hashes()
    call, x = DOORS[door](copy.deepcopy(plain)), torch.randn(2, 5, 6)
    with pytest.warns(messages.TraincWarning, match="a result of uint64 is not compiled"):
        got = call(x)
    assert got[1].dtype is torch.uint64 and torch.equal(got[1], plain(x)[1])
