"""The examples of TensorFlow, small: they run, compiled as a whole, and their losses are those of XLA."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="make test-tensorflow")
EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "tf"
SMALL = {
    "custom_loop.py": ["--layers=1", "--width=32", "--length=16", "--batch=4", "--steps=4"],
    "keras_resnet.py": ["--width=4", "--blocks=1", "--pictures=32", "--batch=16", "--epochs=2"],
}
CLOSE = {"custom_loop.py": 0.05, "keras_resnet.py": 1e-3}  # the loop's dropout draws other masks than XLA's


def losses(example: str, *arguments: str) -> list[float]:
    command = [sys.executable, str(EXAMPLES / example), *SMALL[example], *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env={**os.environ, "KERAS_BACKEND": "tensorflow"})
    assert done.returncode == 0 and "runs in" not in done.stderr, done.stderr[-3000:]
    return [float(x) for x in re.findall(r"loss:? ([\d.]+)", done.stdout)]


@pytest.mark.parametrize("example", SMALL)
def test_losses_are_those_of_xla(example):
    got, wanted = losses(example), losses(example, "--xla")
    assert len(got) >= 2
    np.testing.assert_allclose(got, wanted, rtol=CLOSE[example])
