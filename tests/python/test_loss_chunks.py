"""Linear -> cross-entropy in chunks of rows: gradients as near to the truth as eager's, the same bits for any number of threads, less memory."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import trainc

ROWS, WORDS, WIDTH = 7 * 19, 503, 24


class Words(nn.Module):
    """Embedding -> linear -> logits by the embedding's own weight (or another one) -> `F.cross_entropy(..., **kwargs)`."""

    def __init__(self, tied: bool = True, bias: bool = False, give_logits: bool = False, **kwargs):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=bias)
        if tied:
            self.head.weight = self.embedding.weight
        self.kwargs, self.give_logits = kwargs, give_logits

    def forward(self, words, labels):
        logits = self.head(torch.tanh(self.inner(self.embedding(words))))
        loss = F.cross_entropy(logits.view(-1, WORDS), labels.view(-1), **self.kwargs)
        return (loss, logits) if self.give_logits else loss


def batch(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    words, labels = torch.randint(0, WORDS, (2, 7, 19), generator=generator)
    labels[:, -1] = -100
    return words, labels


def twins(count: int, **kwargs) -> list[Words]:
    torch.manual_seed(0)
    first = Words(**kwargs)
    return [first, *(Words(**kwargs) for _ in range(count - 1))] if not count else [_copy(first, kwargs) for _ in range(count)]


def _copy(model: Words, kwargs: dict) -> Words:
    made = Words(**kwargs)
    made.load_state_dict(model.state_dict())
    return made


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(trainc.config, "fallback", False)
    monkeypatch.setattr(trainc.config, "cache", False)
    monkeypatch.setattr(trainc.config, "loss_chunk_rows", 32)  # four chunks of 27 rows, one of 25
    monkeypatch.setattr(trainc.config, "loss_chunk_bytes", 1 << 10)


def gradients_of(model: Words, door: str, seed: int, bf16: bool = False) -> tuple[float, dict[str, torch.Tensor]]:
    model.zero_grad()

    def step(words, labels):
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            result = model(words, labels)
        result.backward()
        return result

    if door == "compile" and not hasattr(model, "_through"):
        trainc.compile(model)
    if door == "step":
        step = model.__dict__.setdefault("_through", trainc.train_step(step))
    loss = step(*batch(seed))
    return loss.item(), {name: p.grad.double().clone() for name, p in model.named_parameters()}
