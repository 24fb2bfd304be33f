"""What kernels of GPT-2's step ask of a GPU's memory, at the size that is measured (bench/gpu_traffic.py; docs/cuda.md): nothing
is wasted but what is known. `python bench/gpu_traffic.py --check` asks of all five models, in both precisions."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from trainc import _core

ROOT = Path(__file__).resolve().parents[3]


def test_no_kernel_of_gpt2_wastes_more_than_is_known():
    # a process of its own: it puts another device in PyTorch's place
    command = [sys.executable, "bench/gpu_traffic.py", "--cases", "gpt2", "--precisions", "bf16", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    told = re.search(r"gpt2 bf16: (\d+) kernels, \d+ of them wasteful; sectors (\S+) x the least", done.stdout)
    assert int(told[1]) > 40 and 1 <= float(told[2]) < 1.1, done.stdout


def test_a_transposed_read_is_told():
    nest = """kernel transposed
  parallel 1024
  threads 256
  argument x: f32[1048576]
  argument y: f32[1048576] written
body:
  parallel i in 1024:
    thread j in 1024:
      store y[i * 1024 + j] = x[j * 1024 + i]
"""
    rows = {row[0]: row[1:] for row in _core.memory_traffic(nest)}
    requests = 1024 * 1024 / 32
    assert rows["x"] == (False, False, requests, 32 * requests, 4 * requests, 128 * requests)
    assert rows["y"] == (False, True, requests, 4 * requests, 4 * requests, 128 * requests)
