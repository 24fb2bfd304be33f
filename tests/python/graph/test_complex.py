"""Complex numbers within a model: PyTorch computes with them, inside the plan, where they are pairs of reals."""

import copy

import pytest
import torch
from conftest import DOORS, assert_same, gradients
from torch import nn

import trainc
from trainc.base import records
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


@pytest.mark.sampled(4)
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


class Filter(nn.Module):
    """Complex parameters, arguments, statistics and results: of an extern, a conjugate, saved for the backward, an argument."""

    def __init__(self):
        super().__init__()
        self.layer, self.weight = nn.Linear(6, 6), nn.Parameter(torch.randn(6, 4, dtype=torch.complex64))
        self.register_buffer("mean", torch.zeros(4, dtype=torch.complex64))

    def forward(self, x, c):
        f = torch.fft.fft(self.layer(x))
        g = (f + c) @ self.weight
        self.mean.add_(g.detach().mean((0, 1)))
        small = torch.view_as_real((g / 100).sin())
        return f, (g * f[..., :4]).conj() / 100, g, c.clone(), small, f.mT.contiguous()[:, ::2], f.sum()


def _called(model, call, n, lazy):
    made = torch.Generator().manual_seed(n)
    x = torch.randn(n, 5, 6, generator=made).requires_grad_()
    c = torch.randn(n, 5, 6, dtype=torch.complex64, generator=made).requires_grad_()
    results = call(x, c)
    weights = [torch.randn(r.shape, dtype=r.dtype, generator=made) for r in results]
    # every other time a loss whose gradients are conjugates that nobody has computed yet
    loss = sum(((w.conj() if lazy else w) * r).abs().sum() for w, r in zip(weights, results, strict=True))
    loss.backward()
    return results, x.grad, c.grad, model.mean.clone(), *gradients(model).values()


@pytest.mark.parametrize("door", DOORS)
def test_complex_numbers_go_in_and_come_out(engine, strict, door):
    plain = Filter()
    ours = copy.deepcopy(plain)
    call = DOORS[door](ours)
    backend.compilations.clear()
    for n, lazy in ((2, False), (3, False), (1, True), (2, True)):
        wanted, got = _called(plain, plain, n, lazy), _called(ours, call, n, lazy)
        for w, g in zip((*wanted[0], *wanted[1:]), (*got[0], *got[1:]), strict=True):
            assert (g.dtype, g.shape, g.stride()) == (w.dtype, w.shape, w.stride())
            assert_same(g.resolve_conj(), w.resolve_conj(), 1e-4)
    found = records.of(ours) if door == "trainc" else backend.compilations
    assert {record.engine for record in found} == {engine} and all(record.route != "eager" for record in found)


@pytest.mark.parametrize("door", DOORS)
def test_a_complex_result_is_its_own(core, strict, door):
    """Who writes to one changes neither another result, nor what the backward reads."""
    plain = Filter()
    ours = copy.deepcopy(plain)
    call = DOORS[door](ours)
    found = []
    for model, run in ((plain, plain), (ours, call)):
        x, c = torch.ones(2, 5, 6), torch.ones(2, 5, 6, dtype=torch.complex64)
        results = run(x, c)
        with torch.no_grad():
            results[3].mul_(3)
        results[4].sum().backward()
        found.append([*results, c, *(p.grad for p in model.parameters())])
    for w, g in zip(*found, strict=True):
        assert_same(g.resolve_conj(), w.resolve_conj(), 1e-4)


def test_complex_parameters_take_their_steps(core, strict):
    """With an optimizer that trainc has: PyTorch's own updates those that are complex."""
    for kind in (torch.optim.AdamW, torch.optim.SGD):
        plain = Filter()
        ours = copy.deepcopy(plain)
        theirs = kind(plain.parameters(), 1e-3)
        call, mine = trainc.compile(ours, kind(ours.parameters(), 1e-3))
        for n in range(1, 4):
            for model, run, optimizer in ((plain, plain, theirs), (ours, call, mine)):
                optimizer.zero_grad()
                _called(model, run, n, False)
                optimizer.step()
        for w, g in zip(plain.parameters(), ours.parameters(), strict=True):
            assert_same(g, w, 1e-4)


def test_a_complex_result_beside_pytorch(core, strict):
    """verify= looks at it, too."""
    ours = Filter()
    call = trainc.compile(ours, verify=1)
    _called(ours, call, 2, False)
    assert "1 call agrees" in str(records.of(ours)[0].verified)


@pytest.mark.skipif(not hasattr(torch, "hash_tensor"), reason="this PyTorch has no operation that gives uint64")
@pytest.mark.parametrize("door", DOORS)
def test_an_unsigned_result(core, strict, door):
    """A plan carries uint64 as int64."""

    class Hashes(Fourier):
        def forward(self, x):
            return self.layer(x), torch.hash_tensor(x), torch.hash_tensor(x, 0)

    plain = Hashes()
    call = DOORS[door](copy.deepcopy(plain))
    for n in (2, 3):
        x = torch.randn(n, 5, 6)
        for w, g in zip(plain(x)[1:], call(x)[1:], strict=True):
            assert g.dtype is torch.uint64 and torch.equal(g, w)
