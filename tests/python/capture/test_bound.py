"""Programs that are too long to be traced: a loop of many steps."""

import copy

import pytest
import torch
from conftest import assert_same
from torch import nn

import trainc
from trainc.base import messages, records


class Steps(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.steps = nn.LSTMCell(4, 4), 20

    def forward(self, x):
        h = c = torch.zeros(x.shape[0], 4)
        for _ in range(self.steps):
            h, c = self.cell(x, (h, c))
        return h


@pytest.fixture
def pair(monkeypatch):
    monkeypatch.setattr(trainc.config, "max_operations", 300)
    monkeypatch.setattr(trainc.config, "max_operations_without_gradients", 200)
    plain = Steps()
    return plain, trainc.compile(copy.deepcopy(plain))


def test_a_long_loop_runs_in_pytorch(core, pair):
    plain, ours = pair
    x = torch.randn(3, 4)
    with pytest.warns(messages.TraincWarning, match="more than 300 operations"):
        assert_same(ours(x), plain(x))
    with torch.no_grad():
        assert_same(ours(x), plain(x))  # it runs in PyTorch until it comes again
        with pytest.warns(messages.TraincWarning, match="more than 200 operations"):
            assert_same(ours(x), plain(x))
        assert_same(ours(x), plain(x))
    assert [record.route for record in records.of(ours)] == ["eager", "eager"]


def test_a_shorter_one_is_compiled(core, strict, pair):
    plain, ours = pair
    plain.steps = ours.steps = 2
    x = torch.randn(3, 4)
    assert_same(ours(x), plain(x))
    with torch.no_grad():
        for _ in range(3):
            assert_same(ours(x), plain(x))
    assert [record.route for record in records.of(ours)] == ["compiled", "compiled"]


@pytest.mark.filterwarnings("ignore")
def test_a_graph_of_dynamos_runs_in_pytorch(core, pair):
    plain, _ = pair
    x = torch.randn(3, 4)
    compiled = torch.compile(copy.deepcopy(plain), backend="trainc")
    with pytest.warns(messages.TraincWarning, match="more than 300 operations"):
        assert_same(compiled(x), plain(x))
