"""tune="max" on a GPU, on a stand-in whose clock has a script (src/runtime/cuda/driver.h): what is measured of the library's
products, and that the answer is kept, in plans and beside them, and asked for again."""

from __future__ import annotations

import math

import pytest
import torch
from standin import StandIn
from torch import nn

import trainc
from trainc.base import config, records, tuning
from trainc.base.options import CompileOptions
from trainc.torch import device


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    stand_in = StandIn()
    stand_in.vendor_product_flops = 1
    monkeypatch.setattr(config, "fallback", False)
    monkeypatch.setattr(config, "cache", True)
    monkeypatch.setattr(config, "cache_dir", str(tmp_path / "cache"))
    monkeypatch.setattr(tuning, "_ways", {})
    monkeypatch.setattr(device, "gpu_in_use", lambda: True)
    monkeypatch.setitem(device._devices, torch.device("cpu"), stand_in)
    return stand_in


@pytest.fixture
def races(monkeypatch):
    found = []
    race = tuning.race

    def counted(variants, measure):
        winner, seconds = race(variants, measure)
        found.append((variants, winner))
        return winner, seconds

    monkeypatch.setattr(tuning, "race", counted)
    return found


def trained(tune: str) -> tuple[list[torch.Tensor], nn.Module]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 4))
    x = torch.randn(6, 8)
    call = model if tune == "eager" else trainc.compile(model, tune=tune)
    loss = call(x).square().mean()
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters())], model


def algorithms(model: nn.Module) -> list[str]:
    texts = [executable.plan.text() for record in records.of(model) for executable in record.executables()]
    return [line.rpartition(", by ")[2].split(";")[0] for text in texts for line in text.splitlines() if ", by " in line]


def test_the_fastest_algorithm_is_measured_once_and_kept(gpu, races):
    wanted, _ = trained("eager")
    fast, model = trained("fast")
    assert not races and not algorithms(model)
    found, model = trained("max")
    assert set(algorithms(model)) == {"second"}
    assert {variants for variants, _ in races} == {3, 4}  # the gradients of biases are no kernel's
    assert "tune=\"max\": 2 products, 8 ways to compute them: 2 by another algorithm" in str(trainc.explain(model))
    for f, w, m in zip(fast, wanted, found, strict=True):
        torch.testing.assert_close(m, w)
        torch.testing.assert_close(f, w)
    count = len(races)
    tuning._ways.clear()  # as in another process
    found, model = trained("max")
    assert set(algorithms(model)) == {"second"} and len(races) == count


def test_other_plans_take_what_was_measured(gpu, races):
    trained("max")
    count = len(races)
    tuning._ways.clear()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 4))
    trainc.compile(model, tune="max")(torch.randn(6, 8))
    assert set(algorithms(model)) == {"second"} and len(races) == count


def test_within_a_process_a_product_is_made_in_one_way(gpu, races, monkeypatch):
    """A forward that is computed again has the bits of the first, though nothing is stored."""
    monkeypatch.setattr(config, "cache", False)
    trained("max")
    count = len(races)
    assert set(algorithms(trained("max")[1])) == {"second"} and len(races) == count


def never(way: int) -> float:
    raise AssertionError("it is measured again")


def test_what_the_library_no_longer_has_is_measured_again(gpu):
    tuner = tuning.Tuner(CompileOptions.of(gpu, "max"))

    def way(ways, *seconds):
        tuning._ways.clear()
        return tuner.way("a product", ways, seconds.__getitem__ if seconds else never)

    assert way(["a", "b", "c"], 3.0, 1.0, 2.0) == "b"
    assert way(["a", "b", "c"]) == "b"
    assert way(["c", "b"]) == "b"  # wherever it stands now
    with pytest.warns(UserWarning, match="the library no longer has the algorithm b"):
        assert way(["a", "d"], 3.0, 1.0) == "d"
    assert way(["a", "d"]) == "d"


def test_what_cannot_be_measured_is_not_stored(gpu):
    tuner = tuning.Tuner(CompileOptions.of(gpu, "max"))
    assert tuner.way("a product", ["a", "b"], lambda way: math.inf) == ""
    assert tuner.way("a product", ["a", "b"], [3.0, 1.0].__getitem__) == "b"


def test_the_name_of_the_gpu_is_in_the_key(gpu, monkeypatch):
    tuner = tuning.Tuner(CompileOptions.of(gpu, "max"))
    assert tuner.way("a product", ["a", "b"], [3.0, 1.0].__getitem__) == "b"
    monkeypatch.setattr(gpu, "_name", lambda: "another")
    assert tuning.Tuner(CompileOptions.of(gpu, "max")).way("a product", ["a", "b"], [1.0, 3.0].__getitem__) == "a"
