"""A cross-section of `make conformance`: none of it wrong, nothing crashes or hangs."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.thorough
def test_a_cross_section(tmp_path):
    pytest.importorskip("expecttest")  # torch.testing._internal wants it
    run = [sys.executable, Path(__file__).parents[2] / "conformance", "--sample", "--samples", "1", "--jobs", "2"]
    done = subprocess.run([*run, "--out", tmp_path / "results.jsonl"], capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert "compiled or extern" in done.stdout
