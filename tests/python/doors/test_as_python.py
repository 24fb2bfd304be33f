"""Programs that torch.compile's tracer fails on, in the middle: what it fails on runs in Python where it stands, nothing runs
twice, and the rest is compiled."""

import copy
import random
import warnings

import pytest
import torch
from torch import nn

import trainc
from trainc.torch.doors import backend

# Tensors that are made of a list of tensors, which is read element by element.
OF_LISTS = {
    "index": lambda x, i: x[tuple(i),],
    "written in place": lambda x, i: _written(x, i),
    "tensor": lambda x, i: x * torch.tensor([x[0, 0], x[1, 1]]).sum(),
    "as_tensor": lambda x, i: x * torch.as_tensor([x[0, 0], 2.0, 3.0, 4.0]),
}  # fmt: skip


def _written(x, i):
    mask = torch.ones(6, 4, dtype=torch.bool)
    mask[tuple(i), tuple(i + 1)] = False
    return x * mask


class Net(nn.Module):
    """What could run twice comes before what Dynamo fails on: running statistics, a counter, random numbers."""

    def __init__(self, part):
        super().__init__()
        self.first, self.norm, self.last, self.part = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4), part
        self.calls = 0

    def forward(self, x, i):
        x = self.norm(self.first(x))
        self.calls += 1
        if x.sum() > -1e9:
            x = x + random.random() + torch.rand(4)
        return self.last(self.part(x, i))


@pytest.mark.parametrize("name", OF_LISTS)
def test_a_call_that_dynamo_fails_in_is_done_once(name):
    torch.compiler.reset()
    torch.manual_seed(0)
    plain = Net(OF_LISTS[name])
    ours, found, before = copy.deepcopy(plain), [], len(backend.compilations)
    for model in (plain, trainc.compile(ours)):
        torch.manual_seed(1), random.seed(1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results = [model(torch.linspace(-1, 1, 24).reshape(6, 4).sin(), torch.tensor([0, 1])) for _ in range(3)]
        results[-1].square().sum().backward()
        state = [model.norm.running_mean, model.norm.num_batches_tracked, torch.get_rng_state()]
        found.append(([*results, *[p.grad for p in model.parameters()], *state], (model.calls, random.random())))
    for a, b in zip(found[1][0], found[0][0], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    assert found[0][1] == found[1][1]
    assert len(backend.compilations) > before and all(record.route == "dynamo" for record in backend.compilations[before:])


def test_what_is_left_to_python_is_told_once():
    torch.compiler.reset()
    net = trainc.compile(Net(OF_LISTS["index"]))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(3):
            net(torch.ones(6, 4), torch.tensor([0, 1]))
    told = [str(each.message) for each in said if "runs in PyTorch" in str(each.message)]
    assert len(told) == len(set(told)) and any("Net.forward" in each for each in told)


def test_a_failure_of_the_backends_is_raised_where_nothing_may_fall_back(monkeypatch):
    torch.compiler.reset()
    monkeypatch.setattr(trainc.config, "fallback", False)
    monkeypatch.setattr(backend, "_static", lambda *_: 1 / 0)
    net = trainc.compile(Net(OF_LISTS["tensor"]))
    with pytest.raises(Exception, match="division by zero"):
        net(torch.ones(6, 4), torch.tensor([0, 1]))


class Block(nn.Module):
    def __init__(self, shared):
        super().__init__()
        self.own, self.norm, self.drop = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.4)
        self.shared = shared
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x):
        h = self.drop(self.norm(self.own(x)).tanh())
        self.seen += h.detach().mean(0)
        return self.shared(h) + self.seen.mean()


def _hooked(net, seen):
    """Hooks of each kind on parts."""
    net.blocks[0].register_forward_hook(lambda module, args, result: result * 1.5)
    net.blocks[1].register_forward_pre_hook(lambda module, args: (args[0] + 0.1,))
    net.blocks[1].own.weight.register_hook(lambda g: g * 2)
    net.blocks[2].register_full_backward_hook(lambda module, given, got: seen.append(float(got[0].sum())))
    net.blocks[0].own.bias.register_post_accumulate_grad_hook(lambda p: (p.grad.mul_(0.5), None)[1])


class Children(nn.Module):
    """A forward that Dynamo leaves to Python as a whole, for it draws and fails in a loop: its parts are what is compiled."""

    def __init__(self):
        super().__init__()
        self.shared = nn.Linear(4, 4)
        self.blocks = nn.ModuleList([Block(self.shared) for _ in range(3)])
        self.head = nn.Linear(4, 4)
        self.head.weight = self.shared.weight  # tied
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x, i):
        for block in self.blocks:
            if random.random() < 0.8:  # layers that are left out
                x = block(x + torch.rand(4))
            self.mean.mul_(0.9).add_(x.detach().mean(0))
            x = x[tuple(i),]
        with torch.no_grad():
            scale = self.blocks[0](x).abs().mean()  # once more, with its buffers and its masks
        return self.head(x) * scale + self.mean


@pytest.mark.parametrize("hooks", [False, True])
def test_children_of_what_runs_in_python(hooks):
    torch.compiler.reset()
    torch.manual_seed(0)
    plain = Children()
    ours, found, before = copy.deepcopy(plain), [], len(backend.compilations)
    for compiled, net in ((False, plain), (True, ours)):
        seen, told = [], []
        if hooks:
            _hooked(net, seen)
        model, optimizer = trainc.compile(net) if compiled else net, torch.optim.SGD(net.parameters(), 0.05)
        torch.manual_seed(1), random.seed(1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for step in range(6):
                if step == 4:
                    model.eval()
                loss = model(torch.linspace(-1, 1, 24).reshape(6, 4).sin() + step / 10, torch.arange(6).flip(0)).square().mean()
                loss.backward()
                told += [loss.detach(), *[p.grad.clone() for p in net.parameters() if p.grad is not None]]
                told.append(torch.get_rng_state())
                optimizer.step()
                optimizer.zero_grad()
        found.append((told, [*net.state_dict().values()], seen, random.getstate()))
    for a, b in zip((*found[1][0], *found[1][1]), (*found[0][0], *found[0][1]), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
    assert found[1][2] == pytest.approx(found[0][2], rel=1e-3, abs=1e-4) and found[1][3] == found[0][3]
    assert len(backend.compilations) > before
