"""What users start: the example under torchrun, eager beside it; `trainc run` of a program that knows nothing of trainc."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "distributed" / "train_ddp.py"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


SAME = "weights are the same on all ranks"

# A program of PyTorch's alone does not wait for gloo's threads at its end, as one of trainc's does (gloo_threads.py): on a busy
# machine it was aborted three times in a row after all its work was done. So eager's is started by a script that waits, too.
WAITING = """
import runpy, sys
from trainc.torch.run import gloo_threads
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def losses(folder, *words):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TRAINC_CACHE": "1", "TRAINC_CACHE_DIR": str(folder / "cache")}
    done = subprocess.run([*TORCHRUN, *words], capture_output=True, text=True, timeout=100, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert SAME in done.stdout and "runs in PyTorch" not in done.stderr, done.stderr
    return [float(loss) for loss in re.findall(r"loss (\S+)", done.stdout)], done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("torchrun")


@pytest.fixture(scope="module")
def eager(folder):
    script = folder / "waiting.py"
    script.write_text(WAITING)
    return losses(folder, str(script), str(EXAMPLE), "--eager", "--steps", "4")[0]


@pytest.mark.thorough
def test_the_example(folder, eager):
    found, _ = losses(folder, str(EXAMPLE), "--steps", "4")
    assert found == pytest.approx(eager, abs=2e-5) and len(found) == 4


def test_trainc_run_of_a_sharded_program(folder, eager):
    found, said = losses(folder, "-m", "trainc", "run", "--explain", str(EXAMPLE), "--eager", "--fsdp", "--steps", "4")
    assert found == pytest.approx(eager, abs=2e-5)
    assert "compiled for" in said, said
