"""The fuzzer of programs (tests/fuzz): a sample of its programs, and that it sees and makes smaller what differs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

FUZZ = Path(__file__).resolve().parents[2] / "fuzz"
PLAIN = {
    "seed": 0, "rows": [3, 3], "door": "compile", "whole": True, "optimizer": "SGD", "settings": {"lr": 0.1}, "accumulate": 1,
    "clip": None, "set_to_none": True, "scheduler": False, "evaluate": False, "autocast": False,
}  # fmt: skip


@pytest.fixture
def fuzz(monkeypatch):
    """Its modules, by names that nobody else has."""
    monkeypatch.syspath_prepend(str(FUZZ))
    import grammar
    import judge
    import shrink

    yield {"grammar": grammar, "judge": judge, "shrink": shrink}
    for name in ("encoders", "grammar", "judge", "shrink", "program"):
        sys.modules.pop(name, None)


class Scaled(nn.Module):
    """Not the same where it is traced."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(6))

    def forward(self, x, ids):
        y = x * self.w * (1.001 if torch.compiler.is_compiling() else 1.0)
        return y.pow(2).mean(), [y]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("count", "options"), [(16, []), (4, ["--encoders"])])
def test_a_sample_of_programs(count, options):
    done = subprocess.run(
        [sys.executable, FUZZ, "--count", str(count), "--first", "0", "--jobs", "1", *options],
        capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{count} programs" in done.stdout


@pytest.mark.parametrize("door", ["compile", "backend"])
def test_what_differs_is_seen(fuzz, door):
    assert "loss and outputs" in fuzz["judge"].compare(Scaled, {**PLAIN, "door": door})
    assert fuzz["judge"].compare(Same, {**PLAIN, "door": door}) == ""


class Same(Scaled):
    def forward(self, x, ids):
        y = x * self.w
        return y.pow(2).mean(), [y]


class NearlyTheSame(nn.Module):
    """A norm of numbers whose differences are in the last bits: what erf rounds decides."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(6)

    def forward(self, x, ids):
        value = (x * 0.1 + 2.5) * (1 + 2e-7 * torch.compiler.is_compiling())
        y = self.norm(torch.erf(value))
        return y.pow(2).mean(), [y]


def test_what_rounding_decides_is_not_told(fuzz, monkeypatch):
    assert fuzz["judge"].compare(NearlyTheSame, PLAIN) == ""
    monkeypatch.setattr(fuzz["judge"].OtherRounding, "other", lambda self, value: value)
    assert "loss and outputs" in fuzz["judge"].compare(NearlyTheSame, PLAIN)


@pytest.mark.parametrize("kind", ["program_of", "encoder_of"])
def test_programs_are_the_same_for_a_seed_and_others_for_another(fuzz, kind):
    programs = [getattr(fuzz["grammar"], kind)(seed) for seed in (1, 1, 2)]
    assert programs[0] == programs[1] != programs[2]
    assert all(program.forward and "class Net" in program.source() for program in programs)


def test_what_fails_is_made_smaller(fuzz):
    program = fuzz["grammar"].program_of(3)
    last = program.forward[-1]
    small = fuzz["shrink"].shrunk(program, lambda candidate: last in candidate.forward)
    assert small.forward == (last,) and small.outputs == small.init == () and small.loop["rows"] == [3, 3]
