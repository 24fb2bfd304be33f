"""Recurrent layers of every kind: results beside eager's, gradients as near to an fp64 run as eager's. Products of a
weight's gradient are joined (src/passes/join_products.h), and so many steps read a matrix that is transposed once."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn.utils import rnn

import trainc
from trainc.base import records

STEPS, BATCH, WIDTH = 9, 3, 16
CASES = {
    "lstm": (nn.LSTM, {}),
    "gru": (nn.GRU, {}),
    "rnn": (nn.RNN, {"nonlinearity": "relu"}),
    "deep": (nn.LSTM, {"num_layers": 2, "batch_first": True}),
    "both ways": (nn.GRU, {"bidirectional": True, "bias": False}),
    "projected": (nn.LSTM, {"proj_size": 5}),
    "packed": (nn.LSTM, {}),
    "one step": (nn.LSTM, {}),
    "one sample": (nn.GRU, {}),
    "no sample": (nn.LSTM, {}),
    "in bf16": (nn.LSTM, {"num_layers": 2}),
}


def given(name: str) -> tuple:
    """What the layers are called with: inputs, and a first state where the name's length is odd."""
    steps, batch = 1 if name == "one step" else STEPS, {"one sample": 1, "no sample": 0}.get(name, BATCH)
    x = torch.randn(steps, batch, 6)
    if name == "packed":
        return (rnn.pack_padded_sequence(x, [STEPS, STEPS - 2, 2]),)
    kind, settings = CASES[name]
    if settings.get("batch_first"):
        x = x.transpose(0, 1).contiguous()
    layers = settings.get("num_layers", 1) * (2 if settings.get("bidirectional") else 1)
    h = torch.randn(layers, batch, settings.get("proj_size", WIDTH))
    if len(name) % 2 == 0:
        return (x,)
    return x, ((h, torch.randn(layers, batch, WIDTH)) if kind is nn.LSTM else h)


def run(module: nn.Module, call, arguments: tuple, bf16: bool = False) -> dict[str, torch.Tensor]:
    module.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        out, state = call(*arguments)
    out = out.data if isinstance(out, rnn.PackedSequence) else out
    last = state if isinstance(state, torch.Tensor) else state[-1]
    ((out * out.detach().cos()).sum() + last.square().sum()).backward()
    return {"out": out.detach().double(), **{n: p.grad.double() for n, p in module.named_parameters()}}


def doubled(value):
    return value.double() if hasattr(value, "double") else tuple(map(doubled, value))


@pytest.mark.parametrize("name", CASES)
def test_recurrent_layers_are_as_near_to_the_truth_as_eagers(name, monkeypatch):
    monkeypatch.setattr(trainc.config, "fallback", False)
    kind, settings = CASES[name]
    plain = kind(6, WIDTH, **settings)
    wide, ours = copy.deepcopy(plain).double(), copy.deepcopy(plain)
    call, bf16 = trainc.compile(ours), name == "in bf16"
    errors: dict[str, list[float]] = {}
    for _ in range(4):
        arguments = given(name)
        truth = run(wide, wide, doubled(arguments))
        results = [run(ours, call, arguments, bf16)]
        try:
            results.append(run(plain, plain, arguments, bf16))
        except RuntimeError as error:  # oneDNN's layers in bf16 are for CPUs with AVX-512
            assert bf16 and "could not create a primitive descriptor" in str(error)
        for i, found in enumerate(results):
            assert found.keys() == truth.keys()
            for key, exact in truth.items():
                error, size = (found[key] - exact).square().sum().item(), exact.square().sum().item()
                errors.setdefault(key, [0.0, 0.0])[i] += error
                assert error <= (3e-2 if bf16 else 1e-5) ** 2 * (size + 1e-6), key
    assert records.of(ours) and not any(c.externs() for c in records.of(ours))
    if len(results) == 1:
        return
    ratios = [math.sqrt((a + 1e-16) / (b + 1e-16)) for a, b in errors.values()]
    assert math.prod(ratios) ** (1 / len(ratios)) <= 1.1, dict(zip(errors, ratios, strict=True))
    assert max(ratios) <= 2
