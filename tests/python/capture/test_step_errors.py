"""Errors that eager raises in a step's body come from the compiled step as they are, for who catches them; what a trace alone
refuses is a UserError."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import trainc

X, T = torch.ones(2, 4), torch.tensor([0, 1])


def entropy(model, x, t):
    return F.cross_entropy(model(x), t)


BODIES = {  # what makes the loss, and what the step is given
    "width": (entropy, (torch.ones(2, 5), T)),
    "too few arguments": (entropy, (X,)),
    "too many arguments": (entropy, (X, T, T)),
    "arguments of a layer": (lambda model, x, t: model(x, t), (X, T)),
    "rows": (entropy, (X, T[:1])),
    "dtype": (entropy, (X.double(), T)),
    "dtype of a target": (entropy, (X, T.float())),
    "view": (lambda model, x, t: model(x).view(7).sum(), (X, T)),
    "dimension": (lambda model, x, t: model(x).sum(5).sum(), (X, T)),
    "sizes": (lambda model, x, t: torch.cat([model(x), x]).sum(), (X, T)),
    "attribute": (lambda model, x, t: model.nothing(x), (X, T)),
    "no number": (lambda model, x, t: model(x), (X, T)),
    "no gradient": (lambda model, x, t: model(x).detach().sum(), (X, T)),
    "index": (lambda model, x, t: model(x)[:, 7].sum(), (X, T)),
    "dtype of an index": (lambda model, x, t: model(x)[x].sum(), (X, T)),
    "leaf": (lambda model, x, t: model.weight.add_(1).sum(), (X, T)),
    "matrix": (lambda model, x, t: torch.linalg.solve(model(x), x).sum(), (X, T)),
}


def step_of(body, compiled):
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(x, t):
        loss = body(model, x, t)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return (trainc.train_step(step) if compiled else step), model


@pytest.mark.parametrize("before", [False, True], ids=["first", "after others"])
@pytest.mark.parametrize("name", BODIES)
def test_eagers_own_error(name, before):
    body, arguments = BODIES[name]
    raised, bodies = [], [body]
    for compiled in (False, True):
        step, model = step_of(lambda *given: bodies[-1](*given), compiled)
        bodies.append(entropy)
        for rows in (2, 3) if before else ():
            step(torch.ones(rows, 4), torch.zeros(rows, dtype=torch.int64))
        bodies.pop()
        weights = model.weight.detach().clone()
        with pytest.raises(Exception) as error:
            step(*arguments)
        raised.append((error.type, str(error.value).splitlines()[0]))
        assert torch.equal(model.weight, weights)
    assert raised[1] == raised[0]
    if "arguments" not in name and name != "dtype":  # which is found in the graph
        assert any(each.name in ("step", "<lambda>") for each in error.traceback)


def test_a_bad_batch_is_skipped():
    sums = []
    for compiled in (False, True):
        step, model = step_of(entropy, compiled)
        for width in (5, 4, 5, 4, 4):
            try:
                step(torch.ones(2, width), T)
            except RuntimeError:
                continue
        sums.append(model.weight.sum().item())
    assert sums[1] == pytest.approx(sums[0], rel=1e-5)


@pytest.mark.parametrize(
    "body", [lambda model, x, t: model(x).sum() * float(model(x).sum()), lambda model, x, t: model(x).sum() * X.sum()],
    ids=["value", "a tensor of nobody's"],
)  # fmt: skip
def test_what_a_trace_alone_refuses(body):
    with pytest.raises(trainc.UserError, match="trainc.train_step: test_step_errors.py"):
        step_of(body, True)[0](torch.zeros(2, 4), T)
