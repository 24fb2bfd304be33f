"""Numbers that eager's own kernels refuse, and PyTorch's rules for traces do not look at."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import trainc

USES = {  # what is made of a number, and numbers of which eager refuses all but the first and the last
    "smooth_l1_loss": (lambda h, v: F.smooth_l1_loss(h, h.detach() * 2, beta=v), [1.0, -1.0, float("nan"), 0.3]),
    "huber_loss": (lambda h, v: F.huber_loss(h, h.detach() * 2, delta=v), [1.0, -1.0, 0.5]),
    "leaky_relu in place": (lambda h, v: F.leaky_relu(h * 1, v, inplace=True).sum(), [0.1, -0.1, 0.2]),
    "elu in place": (lambda h, v: F.elu(h * 1, v, inplace=True).sum(), [0.1, -1.0, 0.2]),
    "celu in place": (lambda h, v: F.celu(h * 1, v, inplace=True).sum(), [0.1, -1.0, 0.2]),
    "rrelu in place": (lambda h, v: F.rrelu(h * 1, v, v, training=False, inplace=True).sum(), [0.1, -0.3, 0.2]),
}
NOT_REFUSED = {
    "leaky_relu": lambda h, v: F.leaky_relu(h * 1, v).sum(),
    "elu": lambda h, v: F.elu(h * 1, v).sum(),
}


def losses(door, use, values):
    """Of one step each; where the door refuses, the type of the error. And what the steps have left."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2).double()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, x, value):
            return use(self.model(x), value)

    whole = trainc.compile(Loss()) if door == "compile" else Loss()

    def step(x, value):
        optimizer.zero_grad()
        loss = whole(x, value)
        loss.backward(), optimizer.step()
        return loss

    step, found = trainc.train_step(step) if door == "step" else step, []
    for value in values:
        try:
            found.append(step(torch.randn(6, 4).double(), value).detach())
        except (RuntimeError, trainc.UserError):
            found.append(None)
    return found, [p.detach() for p in model.parameters()]


@pytest.mark.parametrize("door", ["compile", "step"])
@pytest.mark.parametrize("name", USES)
def test_eager_s_refusals_are_ours(core, door, name):
    use, values = USES[name]
    found, left = losses(door, use, values)
    expected, expected_left = losses("eager", use, values)
    assert [each is None for each in expected] == [False, *[True] * (len(values) - 2), False]
    assert [each is None for each in found] == [each is None for each in expected]
    assert torch.allclose(found[-1], expected[-1])
    assert all(torch.allclose(a, b) for a, b in zip(left, expected_left, strict=True))


@pytest.mark.parametrize("door", ["compile", "step"])
@pytest.mark.parametrize("name", NOT_REFUSED)
def test_what_eager_takes_is_taken(core, door, name):
    found, _ = losses(door, NOT_REFUSED[name], [0.1, -0.3])
    assert torch.allclose(torch.stack(found), torch.stack(losses("eager", NOT_REFUSED[name], [0.1, -0.3])[0]))


@pytest.mark.parametrize("loss", [F.mse_loss, F.smooth_l1_loss, F.huber_loss, F.l1_loss])
def test_a_mean_over_no_rows_is_no_number(core, loss):
    model = nn.Linear(4, 2)
    optimizer, before = torch.optim.SGD(model.parameters(), 0.1), model.weight.detach().clone()

    def step(x, y):
        optimizer.zero_grad()
        found = loss(model(x), y)
        found.backward(), optimizer.step()
        return found

    assert trainc.train_step(step)(torch.randn(0, 4), torch.randn(0, 2)).isnan()
    assert torch.equal(model.weight, before)


def test_a_number_that_is_no_tensor_in_an_optimizer_s_state(core):
    model = nn.Linear(4, 2)
    optimizer = torch.optim.Adam(model.parameters())

    def step(x):
        optimizer.zero_grad()
        loss = model(x).sum()
        loss.backward(), optimizer.step()
        return loss

    step = trainc.train_step(step)
    step(torch.randn(6, 4))
    optimizer.state[model.weight]["step"] = 5
    with pytest.raises(trainc.UserError, match="in the place of a tensor"):
        step(torch.randn(6, 4))
