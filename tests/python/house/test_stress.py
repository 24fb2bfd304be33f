"""A sample of each kind of `make stress`."""

import subprocess
import sys
from pathlib import Path


def test_a_sample_of_each_kind():
    stress = Path(__file__).parents[2] / "stress"
    done = subprocess.run([sys.executable, stress, "--count", "40"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout.splitlines()) == 8, done.stdout
