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


TWO_RANKS = """
import hashlib, os, sys, tempfile
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

how, callbacks, more = sys.argv[1], [], {}
torch.manual_seed(0)
config = BertConfig(vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
                    hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
model = BertForSequenceClassification(config)
if how != "eager":
    import trainc
    from trainc.trainers.huggingface import Callback
    callbacks = [Callback()] if how == "callback" else []
    more = {"torch_compile_backend": "trainc"} if how == "dynamo" else {}
    model = trainc.compile(model) if how == "before" else model
data = [{"input_ids": [1 + i % 40, 2, 3, 4 + i % 7], "labels": i % 2} for i in range(64)]
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(folder, max_steps=6, report_to="none", save_strategy="no", use_cpu=True, logging_steps=1,
                                  per_device_train_batch_size=4, gradient_accumulation_steps=2, ddp_backend="gloo", **more)
    trainer = Trainer(model, arguments, train_dataset=data, callbacks=callbacks)
    trainer.train()
losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
rank = int(os.environ["RANK"])
sys.stdout.write(f"\\nweights {digest}\\n" + ("\\neager " + " ".join(map(str, losses)) + "\\n" if rank == 0 else ""))
"""


def test_the_trainer_on_two_ranks(tmp_path):
    """DDP by accelerate, with accumulation: `no_sync` in every other backward."""
    (tmp_path / "train.py").write_text(TWO_RANKS)
    torchrun, found = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"], {}
    for how in ("eager", "callback", "before", "dynamo"):
        text = run([*torchrun, tmp_path / "train.py", how], tmp_path / "cache", OMP_NUM_THREADS="1")
        weights = re.findall(r"weights (\w+)", text)
        assert len(weights) == 2 and len(set(weights)) == 1, text
        found[how] = losses(text)["eager"]
    assert all(same(found[how], found["eager"]) for how in found), found
