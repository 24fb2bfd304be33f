"""A backward that hands its gradients out in stages, in one process: whoever takes one may write over it at once, as DDP does,
and the others come out to the same bits as from the backward that runs as a whole."""

import networks
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import trainc
from trainc.torch.capture import distributed
from trainc.torch.joint import stages
from trainc.torch.run import executable


class Wrapper:
    """As much of DistributedDataParallel as a compiled call looks at."""

    bucket_bytes_cap = 1


@pytest.fixture
def staged(monkeypatch):
    """Each parameter is a stage of its own, whatever hooks it has."""
    wrapper = Wrapper()
    monkeypatch.setattr(stages, "MOST", 1 << 40)
    monkeypatch.setattr(stages, "may_be_staged", lambda *_: True)

    def on(active=True):
        monkeypatch.setattr(distributed, "reducing", lambda: wrapper if active else None)

    return on


@pytest.fixture
def parts(monkeypatch):
    """How many steps had run at each stage."""
    found, results = [], executable.InParts.results

    def counted(self, places):
        given = results(self, places)
        found.append(self.steps)
        return given

    monkeypatch.setattr(executable.InParts, "results", counted)
    return found


class Normalised(nn.Module):
    """The gradient of a batch norm's input is made of those of its weight and bias."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 5, 3, bias=False), nn.Conv2d(5, 7, 3)
        self.norm, self.layer, self.head = nn.BatchNorm2d(5), nn.LayerNorm(7), nn.Linear(7, 3)

    def forward(self, x):
        x = self.second(self.norm(self.first(x)).relu())
        return self.head(self.layer(x.mean((2, 3)))).square().mean()


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.body, self.head = nn.Embedding(11, 8), nn.Linear(8, 8), nn.Linear(8, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids):
        return F.cross_entropy(self.head(self.body(self.embedding(ids)).tanh()).flatten(0, 1), ids.flatten())


def of_case(case):
    return case.model, lambda model, i: case.step_loss(i, model)


def normalised():
    data = [torch.randn(4, 3, 8, 7) for _ in range(3)]
    return Normalised(), lambda model, i: model(data[i])


def tied():
    data = [torch.randint(0, 11, (2, 5)) for _ in range(3)]
    return Tied(), lambda model, i: model(data[i])


CASES = {
    "normalised": normalised,
    "tied": tied,
    "mamba": lambda: of_case(networks.mamba()),
}


def gradients(make, steps=3, taken=True):
    """Of each step, by parameter; what autograd accumulates is written over as soon as it is there."""
    torch.manual_seed(1)
    model, loss_of = make()
    trainc.compile(model)
    found = []
    for name, p in model.named_parameters():

        def take(p, name=name):
            found[-1][name] = p.grad.clone()
            p.grad.fill_(float("nan"))
            p.grad = None

        if p.requires_grad:
            p.register_post_accumulate_grad_hook(take)
    torch.manual_seed(2)
    for i in range(steps):
        found.append({})
        loss_of(model, i).backward()
    assert {c.route for c in trainc.explain(model).compilations} == {"compiled"}
    return found


@pytest.mark.parametrize("case", CASES)
def test_what_is_given_may_be_written_over(case, staged, parts):
    staged(False)
    wanted = gradients(CASES[case])
    assert not parts
    staged()
    found = gradients(CASES[case])
    for own, other in zip(found, wanted, strict=True):
        assert own.keys() == other.keys() and len(own) > 2
        for name in own:
            assert torch.equal(own[name], other[name]), name
    if case in ("normalised", "tied"):  # the others draw, or PyTorch runs a step of them
        assert len(set(parts)) > 2 and len(parts) == len(found) * len(own)


def test_what_came_before_the_model_gets_its_gradient(staged):
    torch.manual_seed(0)
    data, before = torch.randn(4, 3, 8, 7), nn.Conv2d(3, 3, 1)
    found = []
    for active in (False, True):
        torch.manual_seed(1)
        model = Normalised()
        trainc.compile(model)
        staged(active)
        before.zero_grad()
        x = before(data)
        model(x).backward()
        found.append([p.grad.clone() for p in (*before.parameters(), *model.parameters())])
    assert all(map(torch.equal, *found))


def test_two_calls_before_a_backward(staged, parts):
    """Both runs stand between two stages at once."""
    torch.manual_seed(0)
    first, second = torch.randn(2, 4, 3, 8, 7)
    found = []
    for active in (False, True):
        torch.manual_seed(1)
        model = Normalised()
        trainc.compile(model)
        staged(active)
        (model(first) + 2 * model(second)).backward()
        found.append([p.grad.clone() for p in model.parameters()])
    for own, other in zip(*found, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-6, atol=1e-7)
    assert len(parts) == 2 * len(found[0])


def test_a_backward_again_and_gradients_of_some(staged):
    torch.manual_seed(1)
    model, x = Normalised(), torch.randn(4, 3, 8, 7)
    trainc.compile(model)
    staged(False)
    wanted = torch.autograd.grad(model(x), list(model.parameters()))
    staged()
    loss = model(x)
    for _ in range(2):
        assert all(map(torch.equal, torch.autograd.grad(loss, list(model.parameters()), retain_graph=True), wanted))
    for place in (0, 3, -1):
        (own,) = torch.autograd.grad(loss, [list(model.parameters())[place]], retain_graph=True)
        assert torch.equal(own, wanted[place])


def test_the_gradient_of_a_gradient(staged):
    found = []
    x = torch.randn(4, 3, 8, 7)
    for compiled in (False, True):
        torch.manual_seed(1)
        model = Normalised()
        if compiled:
            trainc.compile(model)
            staged()
            model(x).backward()
        first = torch.autograd.grad(model(x), list(model.parameters()), create_graph=True)
        found.append(torch.autograd.grad(sum(g.square().sum() for g in first), list(model.parameters()), allow_unused=True))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


def test_a_run_that_is_given_up(staged):
    """An error between two stages: the next step is right, and takes no more memory."""
    torch.manual_seed(1)
    model, x = Normalised(), torch.randn(4, 3, 8, 7)
    trainc.compile(model)
    staged(False)
    wanted = torch.autograd.grad(model(x), list(model.parameters()))
    staged()

    def refuse(_):
        raise ArithmeticError("in the middle")

    for _ in range(3):
        hook = model.second.weight.register_hook(refuse)
        with pytest.raises(ArithmeticError):
            model(x).backward()
        hook.remove()
        assert all(map(torch.equal, torch.autograd.grad(model(x), list(model.parameters())), wanted))


def test_stages_follow_the_parameters_from_the_last():
    tensors = [torch.zeros(n, requires_grad=True) for n in (300_000, 10, 200_000, 100_000, 400_000)]
    tensors.append(torch.zeros(7, requires_grad=True) * 1)  # came before the model
    groups = stages.groups_of(range(6), tensors, 25 << 20)
    assert groups == [[4], [3, 2], [1, 0, 5]]
    assert stages.groups_of(range(6), tensors, 1) == [[4], [3], [2], [1, 0, 5]]
    assert stages.groups_of([], tensors, 1) == [[]]
