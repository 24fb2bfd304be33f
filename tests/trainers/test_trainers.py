"""examples/trainers with the real libraries: compiled beside eager, the same losses; and other ways through the same doors."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "trainers"
EXAMPLES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "text")


def run(words: list, cache: Path, **environment: str) -> str:
    environment = {**os.environ, "TRAINC_CACHE_DIR": str(cache), "TRAINC_CACHE": "1", **environment}
    done = subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stderr
    assert "runs in PyTorch" not in done.stderr, done.stderr
    return done.stdout


def losses(text: str) -> dict[str, list[float]]:
    rows = re.findall(r"^(eager|compiled) (.*)$", text, re.MULTILINE)
    return {name: [float(word) for word in numbers.split()] for name, numbers in rows}


def same(found: list[float], wanted: list[float]) -> bool:
    return len(found) == len(wanted) > 4 and all(abs(a - b) <= 2e-6 * abs(b) for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_train_as_eager(tmp_path, example):
    found = losses(run([FOLDER / f"{example}.py"], tmp_path))
    assert same(found["compiled"], found["eager"]), found
    # forward and backward; the optimizer's step but through Dynamo; whatever else is evaluated
    plans = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(plans) >= 2, plans
    assert len((FOLDER / f"{example}.py").read_text().splitlines()) <= 60


@pytest.mark.parametrize("example", ["huggingface", "accelerated", "lora"])
def test_trainc_run_needs_no_callback(tmp_path, example):
    """The eager half of each example, as `trainc run` compiles it."""
    eager = losses(run([FOLDER / f"{example}.py", "--only", "eager"], tmp_path))
    assert not list(tmp_path.iterdir())
    found = losses(run(["-m", "trainc", "run", FOLDER / f"{example}.py", "--only", "eager"], tmp_path))
    assert same(found["eager"], eager["eager"]) and list(tmp_path.iterdir())


def test_accelerates_variable(tmp_path):
    """ACCELERATE_DYNAMO_BACKEND=trainc: accelerator.prepare compiles."""
    eager = losses(run([FOLDER / "accelerated.py", "--only", "eager"], tmp_path))
    found = losses(run([FOLDER / "accelerated.py", "--only", "eager"], tmp_path, ACCELERATE_DYNAMO_BACKEND="trainc"))
    assert same(found["eager"], eager["eager"]) and list(tmp_path.iterdir())
