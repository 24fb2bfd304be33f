"""Weights that are made of other parameters: torch.nn.utils.parametrize, also within its `cached()`, and the older hooks."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import trainc


class Symmetric(nn.Module):
    def forward(self, x):
        return x.triu() + x.triu(1).T


KINDS = {
    "symmetric": lambda layer: parametrize.register_parametrization(layer, "weight", Symmetric()),
    "weight_norm": parametrizations.weight_norm,
    "spectral_norm": parametrizations.spectral_norm,  # forward writes its buffers
    "orthogonal": parametrizations.orthogonal,
    "weight_norm, by hooks": torch.nn.utils.weight_norm,
    "spectral_norm, by hooks": torch.nn.utils.spectral_norm,
}


def train(model, door, cached):
    optimizer, run, losses = torch.optim.SGD(model.parameters(), lr=0.1), model, []
    if door == "compile":
        trainc.compile(model, optimizer)
    elif door == "backend":
        run = torch.compile(model, backend="trainc")
    generator = torch.Generator().manual_seed(3)

    def step(x):
        optimizer.zero_grad()
        loss = (run(x) + run(x)).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    if door == "train_step":
        step = trainc.train_step(step)
    for _ in range(4):
        x = torch.randn(5, 6, generator=generator)
        if cached:
            with parametrize.cached():
                losses.append(step(x).item())
        else:
            losses.append(step(x).item())
    return losses


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_trains_as_eager_does(kind, cached):
    def made():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))
        KINDS[kind](model[0])
        return model

    wanted = train(made(), "eager", cached)
    for door in ("compile", "backend", "train_step"):
        if door == "train_step" and (cached or "hooks" in kind):
            with pytest.raises(trainc.UserError):
                train(made(), door, cached)
            continue
        torch._dynamo.reset()
        assert train(made(), door, cached) == pytest.approx(wanted, rel=1e-5), door
