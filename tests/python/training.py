"""Eager's training of the small models (models.py): what the compiled ones are compared with, made once in a process."""

from __future__ import annotations

import functools

import loss_rule
import models
import pytest
import torch

STEPS = 10
train = functools.partial(models.train, steps=STEPS)


def adamw(model) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-4)


@functools.cache
def eager(name: str, disturbance: int = 0, bf16: bool = False, initial: int = 0) -> list[float]:
    case = models.build(name, initial)
    if disturbance:
        loss_rule.disturb(case.model, disturbance)
    try:
        return train(case, case.model, adamw(case.model), bf16=bf16)
    except RuntimeError as error:
        if bf16 and "primitive descriptor" in str(error):
            pytest.skip(f"PyTorch itself has no {name} in bf16 on this CPU")
        raise
