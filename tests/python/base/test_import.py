"""`import trainc` takes no time: it brings its compiled module, and no library that a program might not need."""

import subprocess
import sys


def test_import_brings_little():
    code = "import sys; before = set(sys.modules); import trainc; print(*sorted(set(sys.modules) - before))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "trainc._core" in found
    heavy = {"torch", "numpy", "tqdm", "transformers", "accelerate", "glob", "importlib.abc", "importlib.resources", "inspect"}
    assert not heavy & set(found) and len(found) < 45, found


def test_the_command_line_brings_no_framework():
    """`trainc --help` answers at once; `trainc compare` leaves PyTorch to the processes that it starts."""
    code = "import sys; from trainc.cli import compare, words; words.command_line(); print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "numpy", "jax", "tqdm"} & set(found)
