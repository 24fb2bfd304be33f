"""`make demo`'s program, on a model small enough for a test."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).resolve().parents[3] / "examples" / "finetune_gpt2.py"


def demo(*words: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    return subprocess.run([sys.executable, DEMO, *words], capture_output=True, text=True, env=environment)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    from transformers import GPT2Config, GPT2LMHeadModel

    path = tmp_path_factory.mktemp("gpt2")
    config = GPT2Config(vocab_size=600, n_positions=32, n_embd=48, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0)
    GPT2LMHeadModel(config).save_pretrained(path)
    return str(path)


def rows(text: str) -> dict[str, list[str]]:
    """The final table: name of the row -> its columns."""
    table = re.split(r"^ +PyTorch +trainc.*\n", text, flags=re.MULTILINE)[1].splitlines()
    return {line[:24].strip(): line[24:].split() for line in table if line.strip()}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("amp", [[], ["--amp"]], ids=["fp32", "amp"])
def test_it_ends_with_a_table_of_both_runs_and_a_report_of_the_last_step(tmp_path, model, amp):
    page = tmp_path / "report.html"
    few = ["--data", str(Path(__file__)), "--steps", "10", "--batch", "2", "--seq", "16"]
    done = demo("--model", model, *few, "--report", str(page), *amp)
    assert done.returncode == 0, done.stderr
    table = rows(done.stdout)
    assert list(table) == ["loss at step 1", "loss at step 10", "step time (median)", "peak memory (resident)", "compile time"]
    first = table["loss at step 1"]
    assert float(first[0]) == pytest.approx(float(first[1]), rel=2e-2 if amp else 2e-6)
    last = table["loss at step 10"]
    assert float(last[0]) == pytest.approx(float(last[1]), rel=2e-2 if amp else 1e-4)
    assert re.search(r"speed-up \d", done.stdout)
    text = page.read_text()
    assert "No step was timed" not in text and "modeling_gpt2.py" in text


def test_a_report_that_is_no_page_is_refused():
    refused = demo("--report", "report.pdf")
    assert refused.returncode == 2 and "--report wants" in refused.stderr


def test_a_short_text_is_refused_with_the_remedy(tmp_path, model):
    text = tmp_path / "short.txt"
    text.write_text("a few words")
    done = demo("--model", model, "--data", str(text), "--seq", "32")
    assert done.returncode == 2
    assert re.search(r"the text has \d+ tokens; --seq 32 needs more", done.stderr)


def test_help_names_the_options():
    text = demo("--help").stdout
    assert all(option in text for option in ("--model", "--data", "--steps", "--batch", "--seq", "--amp"))
