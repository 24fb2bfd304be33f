"""What the tests of reports share: a small model, one step of it, a report after a timed step."""

from __future__ import annotations

import torch

import trainc


def trained() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.GELU(), torch.nn.Linear(96, 8))
    return trainc.compile(model, torch.optim.AdamW(model.parameters()))


def step(model, optimizer, rows: int = 32) -> None:
    model(torch.randn(rows, 64)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def timed_report(path, *models, steps: int = 1):
    models = models or trained()
    with trainc.profile():
        for _ in range(steps):
            step(*models)
    return trainc.report(models, path)
