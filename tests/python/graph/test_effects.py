"""Operations that give no tensor and do something: checks that raise. They run inside the plan, in order with what draws."""

import copy

import pytest
import torch
from conftest import DOORS, assert_same, gradients
from torch import nn

import trainc
from trainc.base import records
from trainc.torch.doors import backend


class Checked(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.drop = nn.Linear(5, 5), nn.Dropout(0.5)

    def forward(self, x):
        h = self.drop(self.layer(x))
        torch._assert_async((x.sum() > 0), "x is to be positive")
        return self.drop(h).square().mean()


@pytest.mark.parametrize("door", DOORS)
def test_a_check_that_raises_is_in_the_plan(engine, strict, door):
    plain = Checked()
    ours = copy.deepcopy(plain)
    call, x = DOORS[door](ours), torch.rand(4, 5)
    backend.compilations.clear()
    for _ in range(2):
        torch.manual_seed(3)
        wanted = plain(x)
        drawn = torch.rand(3)
        torch.manual_seed(3)
        got = call(x)
        assert torch.equal(torch.rand(3), drawn)
        assert_same(got, wanted)
        wanted.backward(), got.backward()
    assert_same(gradients(ours), gradients(plain))
    with pytest.raises(RuntimeError, match="x is to be positive"):
        call(-x)
    assert_same(call(x).isfinite(), torch.tensor(True))
    found = records.of(ours) if door == "trainc" else backend.compilations
    assert [record.engine for record in found] == [engine]
    if engine == "core":
        assert any(name == "aten._assert_async.msg" for name, _ in found[0].externs())


def test_a_check_that_nothing_else_reads(engine, strict):
    """It is not dead code, and the numbers that it looks at are made for it alone."""

    class Alone(Checked):
        def forward(self, x):
            torch._assert_async(self.layer(x).abs().sum() < 100, "too much")
            return x * 2

    ours = trainc.compile(Alone())
    x = torch.rand(4, 5)
    assert torch.equal(ours(x), x * 2)
    with pytest.raises(RuntimeError, match="too much"):
        ours(1e4 * x)
