"""Gradients of one step are as near to the fp64 truth as eager's: the ratio of the two errors, parameter by parameter."""

from __future__ import annotations

import math

import models
import networks
import pytest
import torch
from torch.overrides import TorchFunctionMode

import trainc

GEOMEAN, WORST = 1.05, 2.0  # 1.0 where it was measured; elsewhere eager has other libraries
BATCHES = 4  # errors are gathered over several batches, so that chance has less to say


class Doubles(TorchFunctionMode):
    """Every float32 that a model asks for by name becomes float64: a model's own upcasts would round the truth."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        def widen(value):
            return torch.float64 if value is torch.float32 else value

        if function is torch.Tensor.float:
            function = torch.Tensor.double
        return function(*map(widen, args), **{key: widen(value) for key, value in (kwargs or {}).items()})


def gradients(case: models.Case, model, batch: int) -> dict[str, torch.Tensor]:
    case.model.zero_grad()
    case.step_loss(batch, model).backward()
    return {name: p.grad.detach().double().clone() for name, p in case.model.named_parameters() if p.grad is not None}


def error_ratios(name: str) -> dict[str, float]:
    """compiled's error over eager's, per parameter. Dropout is off: the two precisions would draw other masks."""
    dtypes = (torch.float32, torch.float32, torch.float64)
    plain, compiled, wide = (models.build(name, dropout=False, dtype=dtype) for dtype in dtypes)
    model = trainc.compile(compiled.model)
    squares: dict[str, list[float]] = {}
    for batch in range(BATCHES):
        with Doubles():
            truth = gradients(wide, wide.model, batch)
        eager, ours = gradients(plain, plain.model, batch), gradients(compiled, model, batch)
        assert truth.keys() == eager.keys() == ours.keys()
        for key, exact in truth.items():
            sums = squares.setdefault(key, [0.0, 0.0, 0.0])
            for i, value in enumerate((ours[key] - exact, eager[key] - exact, exact)):
                sums[i] += value.square().sum().item()
    return {key: ratio(*map(math.sqrt, sums)) for key, sums in squares.items()}


def ratio(ours: float, eager: float, size: float) -> float:
    tiny = 1e-9 * size  # far below fp32's rounding: nothing is divided by an error of 0
    return (ours + tiny) / (eager + tiny) if eager + tiny else 1.0


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [*models.NAMES, *models.IMAGES, *networks.BUILDERS])
@pytest.mark.filterwarnings("ignore::trainc.base.messages.TraincWarning")  # of networks that are split
def test_gradients_are_as_near_to_the_truth_as_eagers(name, monkeypatch):
    monkeypatch.setattr(trainc.config, "fallback", False)
    ratios = error_ratios(name)
    geomean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
    worst = max(ratios, key=ratios.get)
    print(f"\n{name}: geomean {geomean:.3f} over {len(ratios)} parameters, worst {ratios[worst]:.2f} ({worst})")
    assert geomean <= GEOMEAN
    assert ratios[worst] <= WORST, worst


def test_the_truth_is_not_rounded_by_upcasts():
    case = models.build("gpt2", dropout=False, dtype=torch.float64)  # GPT-2's loss asks for float32
    with Doubles():
        assert case.step_loss(0).dtype is torch.float64
