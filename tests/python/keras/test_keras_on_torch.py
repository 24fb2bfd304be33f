"""`fit` and `evaluate` of a compiled Keras model on PyTorch beside Keras's own (keras_on_torch.py trains them)."""

import json
import os
import pathlib
import subprocess
import sys

import fit_ratio
import numpy as np
import pytest
from loss_rule import SHARE, relative, violations

PROGRAM = pathlib.Path(__file__).with_name("keras_on_torch.py")


def told_by(program):
    environment = {**os.environ, "KERAS_BACKEND": "torch"}
    ran = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=900, env=environment)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return json.loads(ran.stdout)


@pytest.fixture(scope="module")
def found():
    return told_by(PROGRAM)


def test_it_trains_as_eager_keras_does(found):
    """Dropout's masks are the same, or no loss would be near."""
    eager, compiled = found["eager"], found["compiled"]
    assert not violations(compiled["losses"], eager["losses"], [run["losses"] for run in found["disturbed"]])
    assert len(compiled["losses"]) == 9
    for name, values in eager["history"].items():
        spread = max(relative(run["history"][name], values)[-1] for run in found["disturbed"])
        np.testing.assert_allclose(compiled["history"][name], values, rtol=max(1e-4, SHARE * spread))
    mine = compiled["history"]
    np.testing.assert_allclose(compiled["evaluated"], [mine[name][-1] for name in ("val_loss", "val_accuracy")], rtol=1e-5)
    assert compiled["predicted"] == [48, 3]


def test_all_of_it_is_compiled_and_nothing_is_warned_of(found):
    assert found["warnings"] == []
    told = "\n".join(found["told"])
    assert "captured by Dynamo" in told and "0 calls of PyTorch" in told and "contract" in told
    assert told.count("captured by Dynamo") == 3  # the model; it whole in training, and in evaluation
    assert found["told at the end"] == found["told"]  # with run_eagerly nothing more is compiled


def test_what_is_not_there_is_a_user_error(found):
    one, two = found["errors"]
    assert "fuse_step" in one and "memory=" in two


@pytest.mark.thorough
def test_its_losses_are_as_near_to_f64_as_pytorch_s():
    fit_ratio.holds(told_by(fit_ratio.__file__))
