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


class Inverse(nn.Module):
    """PyTorch keeps the order of its checks by tokens (`with_effects`)."""

    def __init__(self):
        super().__init__()
        self.weight, self.drop = nn.Parameter(torch.eye(3) * 2), nn.Dropout(0.5)

    def forward(self, x):
        h = self.drop(torch.linalg.inv(self.weight * x))
        return self.drop(torch.linalg.solve(self.weight + x * torch.eye(3), h)).sum()


@pytest.mark.parametrize("door", DOORS)
def test_a_matrix_that_cannot_be_inverted_raises(engine, strict, door):
    plain = Inverse()
    ours = copy.deepcopy(plain)
    call = DOORS[door](ours)
    for seed in range(2):
        torch.manual_seed(seed)
        wanted = plain(torch.tensor(1.5))
        torch.manual_seed(seed)
        got = call(torch.tensor(1.5))
        assert_same(got, wanted)
        wanted.backward(), got.backward()
    assert_same(gradients(ours), gradients(plain))
    with pytest.raises(torch.linalg.LinAlgError, match="singular") as theirs:
        plain(torch.tensor(0.0))
    with pytest.raises(torch.linalg.LinAlgError, match="singular") as error:
        call(torch.tensor(0.0))
    assert str(error.value).startswith(str(theirs.value))


def test_a_check_in_a_train_step_comes_before_the_update(core):
    model = Inverse()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @trainc.train_step
    def step(x):
        optimizer.zero_grad()
        loss = model(x)
        loss.backward()
        optimizer.step()
        return loss

    step(torch.tensor(1.5))
    before = model.weight.detach().clone()
    with pytest.raises(torch.linalg.LinAlgError, match="singular"):
        step(torch.tensor(0.0))
    assert torch.equal(model.weight, before)


class ChecksInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(y)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        (y,) = ctx.saved_tensors
        torch._assert_async(y.sum() > 0, "y is to be positive")
        return gradient * 2, None


class Late(nn.Linear):
    def forward(self, x, y):
        return ChecksInBackward.apply(super().forward(x), y)


@pytest.mark.parametrize("door", DOORS)
def test_a_check_of_the_backward_raises_there(engine, strict, door):
    """Though no gradient goes into it: the forward could do it, too."""
    call = DOORS[door](Late(3, 3))
    x = torch.randn(2, 3)
    call(x, torch.ones(3)).sum().backward()
    result = call(x, -torch.ones(3))
    with pytest.raises(RuntimeError, match="y is to be positive"):
        result.sum().backward()


@pytest.fixture
def logs():
    """An operation of the user's that notes what it is given, registered as one that has an effect."""
    noted = []
    library = torch.library.Library("trainc_test", "FRAGMENT")
    library.define("note(Tensor x, int place) -> Tensor")

    def note(x, place):
        noted.append(place)
        return x.clone()

    library.impl("note", note, "CPU")
    library.impl("note", lambda x, place: x.clone(), "Meta")
    effects = torch._higher_order_ops.effects
    effects._register_effectful_op("trainc_test::note", effects._EffectType.ORDERED)
    yield noted
    library._destroy()


@pytest.mark.parametrize("door", DOORS)
def test_an_operation_that_was_registered_with_an_effect(engine, strict, logs, door):
    """It runs once a call, whether its result is used or not, and in its place."""

    class Noted(nn.Module):
        def forward(self, x):
            torch.ops.trainc_test.note(x, 0)
            y = torch.ops.trainc_test.note(x * 2, 1)
            torch.ops.trainc_test.note(y, 2)
            return y + 1

    call, x = DOORS[door](Noted()), torch.rand(4)
    for _ in range(2):
        logs.clear()
        assert torch.equal(call(x), x * 2 + 1)
    assert logs == [0, 1, 2]
