"""Programs that draw random numbers of Python's and NumPy's in forward: each call draws eager's, and leaves the generators as
eager leaves them; what lies around the draws is compiled."""

import random
import warnings

import numpy
import pytest
import torch
from torch import nn

import trainc
from trainc.base import records
from trainc.torch.doors import backend

OWN, LEGACY, NEW = random.Random(3), numpy.random.RandomState(3), numpy.random.default_rng(3)


def _spans(length):
    """As SpecAugment draws its masks: https://arxiv.org/abs/1904.08779."""
    epsilon, mask = numpy.random.rand(1).item(), numpy.zeros(length, dtype=bool)
    for _ in range(int(1 + epsilon)):
        mask[numpy.random.choice(numpy.arange(length), 2, replace=False)] = True
    return torch.tensor(mask)


def _of_each(x, draw):
    for _ in range(3):
        if draw() < 0.5:  # layers that are left out
            x = torch.sin(x) + 1
    return x


DRAWS = {
    "random": lambda x: x * random.random(),
    "random, uniform": lambda x: x * random.uniform(1, 2),
    "random, sample": lambda x: x[:, random.sample(range(4), 4)],
    "random, through map": lambda x: x * sum(map(lambda _: random.random(), range(3))),
    "random, layers": lambda x: _of_each(x, random.random),
    "own, random": lambda x: x * OWN.random(),
    "own, layers": lambda x: _of_each(x, OWN.random),
    "numpy, rand": lambda x: x * float(numpy.random.rand()),
    "numpy, an array": lambda x: x * torch.from_numpy(numpy.random.rand(4)).float(),
    "numpy, a permutation": lambda x: x[:, torch.tensor(numpy.random.permutation(4))],
    "numpy, spans": lambda x: x.masked_fill(_spans(4), 0.5),
    "numpy, layers": lambda x: _of_each(x, numpy.random.random),
    "numpy, seeded": lambda x: (numpy.random.seed(7), x * float(numpy.random.rand()))[1],
    "RandomState": lambda x: x * torch.tensor(LEGACY.rand(4)).float(),
    "Generator": lambda x: x * torch.tensor(NEW.random(4)).float(),
    "both, and torch's": lambda x: x * random.random() + torch.rand(4) * float(numpy.random.rand()) + torch.rand(4),
}  # fmt: skip
class Net(nn.Module):
    """`hidden`: a trace ends before it has seen the draw, at a branch on a value; Dynamo sees it first."""

    def __init__(self, draw, hidden):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.last = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        self.draw, self.hidden = draw, hidden

    def forward(self, x):
        x = self.first(x)
        if self.hidden and x.sum() > -1e9:
            x = x + 1
        return self.last(self.draw(x))


def _states():
    return [
        random.getstate(), OWN.getstate(), torch.get_rng_state().tolist(), NEW.bit_generator.state,
        *([str(part) for part in each.get_state()] for each in (numpy.random, LEGACY)),
    ]  # fmt: skip


def _trained(draw, hidden, compiled):
    torch.compiler.reset()
    for seed in (random.seed, OWN.seed, numpy.random.seed, LEGACY.seed, torch.manual_seed):
        seed(5)
    NEW.bit_generator.state = numpy.random.default_rng(5).bit_generator.state
    net, found = Net(draw, hidden), []
    torch.manual_seed(2)
    model, x = trainc.compile(net) if compiled else net, torch.linspace(-1, 1, 12).reshape(3, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(3):
            out = model(x)
            out.square().sum().backward()
            found.append((torch.cat([out.detach().flatten(), *[p.grad.flatten() for p in net.parameters()]]), _states()))
    return net, found


def _agree(draw, hidden=False):
    (_, plain), (ours, found) = (_trained(draw, hidden, compiled) for compiled in (False, True))
    for (numbers, states), (expected, expected_states) in zip(found, plain, strict=True):
        assert states == expected_states
        torch.testing.assert_close(numbers, expected, rtol=1e-5, atol=1e-5)
    assert {record.route for record in records.of(ours)} == {"split"}


@pytest.mark.parametrize("name", DRAWS)
def test_each_call_draws_as_eager_does(name):
    _agree(DRAWS[name])


HIDDEN = ["random, uniform", "own, random", "numpy, an array", "numpy, seeded", "numpy, spans", "Generator"]


@pytest.mark.parametrize("name", HIDDEN)
def test_draws_that_a_trace_does_not_come_to_are_eagers(name):
    _agree(DRAWS[name], hidden=True)


def test_a_drawn_integer_is_compiled_for_so_many_values(monkeypatch):
    monkeypatch.setattr(trainc.config, "max_signatures", 2)
    before = len(backend.compilations)
    net = trainc.compile(Net(lambda x: x * int(NEW.integers(10**6)), False))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(12):
            net(torch.ones(3, 4))
    assert len(backend.compilations) - before < 8


def test_evaluation_that_draws_nothing_is_one_plan():
    class Dropped(Net):
        def forward(self, x):
            return super().forward(x) if self.training else self.last(self.first(x))

    net = trainc.compile(Dropped(DRAWS["numpy, layers"], False)).eval()
    net(torch.ones(3, 4))
    numpy.random.rand()  # as a loader does between two calls
    net(torch.ones(3, 4))
    assert [record.route for record in records.of(net)] == ["compiled"]
