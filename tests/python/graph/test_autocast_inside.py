"""Operations that autocast reaches within eager's own kernels: an LSTM's layer, which is one call of oneDNN's, and the product in
`affine_grid`."""

import pytest
import torch
import torch.nn.functional as F
from conftest import DOORS
from torch import nn

import trainc


def layers():
    torch.manual_seed(0)
    return {
        "plain": nn.LSTM(4, 5),
        "both directions, two layers": nn.LSTM(4, 5, num_layers=2, bidirectional=True),
        "batch first, no bias": nn.LSTM(4, 5, batch_first=True, bias=False),
        "projected": nn.LSTM(4, 5, proj_size=3),
        "GRU": nn.GRU(4, 5),
        "RNN": nn.RNN(4, 5),
    }


@pytest.mark.parametrize("inputs", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", layers())
def test_recurrent_layers_have_eagers_dtypes(core, name, inputs):
    x, found = torch.randn(3, 6, 4), []
    for wrap in (lambda m: m, trainc.compile):
        model = layers()[name].to(torch.float64 if inputs is torch.float64 else torch.float32)
        try:
            with torch.autocast("cpu", torch.bfloat16):
                y, state = wrap(model)(x.to(inputs))
        except (RuntimeError, ValueError) as error:
            found.append(type(error))
            continue
        y.float().sum().backward()
        state = state if isinstance(state, tuple) else (state,)
        found.append(([t.dtype for t in (y, *state)], [y.float(), *[t.float() for t in state], model.weight_hh_l0.grad.float()]))
    if isinstance(found[0], tuple):
        assert found[0][0] == found[1][0]
        for got, wanted in zip(found[1][1], found[0][1], strict=True):
            assert torch.allclose(got, wanted, rtol=3e-2, atol=3e-2)
    elif found[0] is RuntimeError and inputs is torch.float32:  # oneDNN has no such LSTM for CPUs without AVX-512
        assert set(found[1][0]) == {torch.bfloat16}
    else:
        assert found[0] == found[1]


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("size", [(2, 1, 3, 5), (2, 1, 2, 3, 4)])
@pytest.mark.parametrize("door", DOORS)
def test_affine_grids_are_eagers(core, door, size, enabled):
    class Grid(nn.Module):
        def forward(self, theta):
            return F.affine_grid(theta * 1, size, align_corners=False)

    theta = torch.randn(2, len(size) - 2, len(size) - 1)
    with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
        wanted, got = Grid()(theta), DOORS[door](Grid())(theta)
    assert got.dtype == wanted.dtype and torch.allclose(got.float(), wanted.float(), atol=1e-6)


@pytest.mark.parametrize("wide", [torch.float32, torch.float64, torch.int64])
@pytest.mark.parametrize("narrow", [torch.float16, torch.bfloat16])
def test_sums_in_a_half_type_round_what_is_summed(core, narrow, wide):
    class Sums(nn.Module):
        def forward(self, x):
            return x.sum(dtype=narrow), x.sum(0, dtype=narrow)

    x = torch.tensor([[70001.0, -70000.0, 1.0], [257.0, -256.0, 1.0]]).to(wide)
    for got, wanted in zip(trainc.compile(Sums())(x), Sums()(x), strict=True):
        assert torch.equal(got.nan_to_num(1e4), wanted.nan_to_num(1e4)), (got, wanted)
