"""torch.nn's transformer layers, given a mask and no hint: eager looks into the mask to see whether it is the causal one, which a
trace cannot. The mask is applied, and the layers are one plan."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import trainc

LENGTH, BATCH, WIDTH = 7, 2, 16
CAUSAL = nn.Transformer.generate_square_subsequent_mask(LENGTH)
BANDED = CAUSAL.masked_fill(torch.ones(LENGTH, LENGTH).tril(-3).bool(), float("-inf"))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=0.0)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x, mask):
        return self.encoder(x, mask=mask)


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.transformer = nn.Transformer(WIDTH, 2, 1, 1, 32, dropout=0.0)

    def forward(self, x, mask):
        return self.transformer(x, 2 * x, tgt_mask=mask)


@pytest.mark.parametrize("kind", [Encoder, Both])
@pytest.mark.parametrize("mask", [CAUSAL, BANDED], ids=["causal", "banded"])
def test_a_mask_without_a_hint(kind, mask, monkeypatch):
    monkeypatch.setattr(trainc.config, "fallback", False)
    torch.manual_seed(0)
    eager = kind()
    compiled = trainc.compile(copy.deepcopy(eager))
    for other in (mask, BANDED):  # whatever it holds when it comes next
        x = torch.randn(LENGTH, BATCH, WIDTH)
        for model in (eager, compiled):
            model.zero_grad()
            model(x, other).square().sum().backward()
        for found, wanted in zip(compiled.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(found.grad, wanted.grad, rtol=2e-4, atol=2e-5)
    assert [compilation.route for compilation in trainc.explain(compiled).compilations] == ["compiled"]
