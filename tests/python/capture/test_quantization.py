"""Quantization-aware training by PyTorch's own fake quantization: its observers get a range for each channel in their first call,
which no trace can know the size of."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn

import trainc

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.ao.quantization import (
        FusedMovingAvgObsFakeQuantize,
        MovingAverageMinMaxObserver,
        MovingAveragePerChannelMinMaxObserver,
    )


def of_channels():
    return FusedMovingAvgObsFakeQuantize(
        MovingAveragePerChannelMinMaxObserver, quant_min=-128, quant_max=127, dtype=torch.qint8,
        qscheme=torch.per_channel_symmetric, ch_axis=0,
    )  # fmt: skip


def of_tensors():
    return FusedMovingAvgObsFakeQuantize(MovingAverageMinMaxObserver, quant_min=0, quant_max=255)


class Quantized(nn.Module):
    def __init__(self, quantize):
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.head, self.quantize = nn.Linear(8, 6), nn.Linear(6, 3), quantize()

    def forward(self, x):
        return self.head(torch.relu(nn.functional.linear(x, self.quantize(self.inner.weight), self.inner.bias)))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("quantize", [of_channels, of_tensors], ids=["channels", "tensors"])
def test_ranges_of_channels_come_with_the_first_call(quantize):
    eager = Quantized(quantize)
    model = copy.deepcopy(eager)
    others, optimizer = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (eager, model))
    model, optimizer = trainc.compile(model, optimizer)
    for step in range(4):
        x = torch.randn(5, 8, generator=torch.Generator().manual_seed(step))
        for trained, its in ((eager, others), (model, optimizer)):
            trained(x).square().mean().backward()
            its.step()
            its.zero_grad()
        for (name, a), (_, b) in zip(model.state_dict().items(), eager.state_dict().items(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6, msg=lambda m, at=(step, name): f"{at}: {m}")
    assert trainc.explain(model).compilations  # from the second step on it is a plan
