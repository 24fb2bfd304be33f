"""A model trained on CPU level amx: on a CPU without it, its instructions are carried out one by one (the same code)."""

import functools
import json
import os
import subprocess
import sys

import loss_rule
import pytest
from training import eager

from trainc import _core

LEVEL = _core.machine_cpu_level()
runs = pytest.mark.skipif(LEVEL not in ("amx", "avx512_bf16"), reason="beside its tiles, such code needs AVX-512 with bf16")

NAMES = {"float32": "wide_gpt2", "bf16": "gpt2"}  # of float32, large products alone are worth their splitting
STEPS = 3
# In a process of its own: the level stays.
TRAIN = f"""
import json, sys
import torch, trainc
from trainc import _core
emulated = _core.machine_cpu_level() != "amx"
assert _core.emulate_amx() and _core.cpu_level() == "amx"
import models
from training import adamw
name, dtype, threads = sys.argv[1:]
torch.set_num_threads(int(threads))
trainc.config.fallback = False
case = models.build(name)
model, optimizer = trainc.compile(case.model, adamw(case.model))
losses = models.train(case, model, optimizer, {STEPS}, dtype == "bf16")
print(json.dumps([losses, _core.emulated_instructions() if emulated else None]))
"""


def process(code: str, *words: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, env={**os.environ, **environment})


@functools.cache
def trained(dtype: str, threads: int = 1, **environment: str) -> tuple[list[float], int | None]:
    """The losses, and how many instructions on tiles were carried out for the CPU; None where it has them."""
    run = process(TRAIN, NAMES[dtype], dtype, str(threads), **environment)
    assert run.returncode == 0, run.stderr[-3000:]
    return tuple(json.loads(run.stdout.splitlines()[-1]))


def first(run: list[float]) -> list[float]:
    return run[:STEPS]


@runs
def test_float32_trains_as_eager_does():
    found, carried_out = trained("float32")
    assert carried_out is None or carried_out > 100_000
    disturbed = [first(eager(NAMES["float32"], seed)) for seed in loss_rule.SEEDS]
    assert not loss_rule.violations(found, first(eager(NAMES["float32"])), disturbed)


@runs
def test_under_autocast_it_is_as_near_to_fp32_as_eager_is():
    found, carried_out = trained("bf16")
    assert carried_out is None or carried_out > 10_000
    name = NAMES["bf16"]
    disturbed = [first(eager(name, seed)) for seed in loss_rule.SEEDS]
    ratio = loss_rule.bf16_ratio(found, first(eager(name)), disturbed, first(eager(name, bf16=True)))
    assert ratio <= 1.5  # of one model


@runs
@pytest.mark.parametrize("dtype", ["float32", "bf16"])
def test_two_threads_give_the_same_bits(dtype):
    assert trained(dtype)[0] == trained(dtype, threads=2)[0]


GRAM = """
import torch, trainc
from trainc import _core
assert _core.emulate_amx() and _core.cpu_level() == "amx"
trainc.config.fallback = False

class Gram(torch.nn.Module):
    def forward(self, x):
        centred = x - x.mean(0)
        return x @ x.T, centred.T @ centred

model = trainc.compile(Gram())
for result in (*model(x := torch.randn(300, 280)), *model(x)):
    assert result.equal(result.T)
"""


@runs
def test_a_matrix_times_its_own_transpose_is_symmetric():
    run = process(GRAM)
    assert run.returncode == 0, run.stderr[-3000:]


@runs
def test_float32_is_left_to_multiply_adds_where_asked():
    found, carried_out = trained("float32", TRAINC_FLOAT32_IN_PARTS="0")
    assert not carried_out
    disturbed = [first(eager(NAMES["float32"], seed)) for seed in loss_rule.SEEDS]
    assert not loss_rule.violations(found, first(eager(NAMES["float32"])), disturbed)


@pytest.mark.skipif(LEVEL == "amx", reason="this machine has it")
def test_a_machine_without_it_says_so():
    run = process("import torch, trainc; trainc.compile(torch.nn.Linear(3, 3))(torch.ones(2, 3))", TRAINC_CPU="amx")
    assert f"UserError: TRAINC_CPU=amx: this machine's best level is {LEVEL}" in run.stderr
