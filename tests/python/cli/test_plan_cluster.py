"""`trainc plan-cluster`: its words, and one run. (The model of a cluster: tests/python/base/test_cluster.py.)"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from typing import Any

import pytest
from torch import nn

from trainc.base.errors import UserError
from trainc.cli.plan_cluster import Question, add_options, one_rank, with_options_behind
from trainc.cli.script import Program
from trainc.cli.step_costs import layers, named

PROGRAM = """
import os, sys, torch
from torch import nn
torch.distributed.init_process_group("gloo")
model = nn.Sequential(nn.Linear(8, 600, bias=False), *[nn.Linear(600, 600, bias=False) for _ in range(3)], nn.Linear(600, 1))
if "ddp" in sys.argv:
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(int(sys.argv[1])):
    optimizer.zero_grad()
    model(torch.randn(64, 8)).square().mean().backward()
    optimizer.step()
"""


def run(*given: str, **options: Any) -> subprocess.CompletedProcess:
    """The command. A minute of each process's own time is far more than it needs, however busy the machine is; the limit on the
    clock's time is for one that waits for nothing."""
    return subprocess.run(
        [sys.executable, "-m", "trainc", "plan-cluster", *given], capture_output=True, text=True, timeout=900, **options,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (60, 60)),
    )  # fmt: skip


def words(*given: str) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser()
    add_options(parser)
    parser.add_argument("words", nargs=argparse.REMAINDER)
    args = parser.parse_args(Program.escaped(list(given)))
    return args, with_options_behind(args, args.words)


def test_options_may_stand_behind_the_program():
    args, program = words("--fsdp", "train.py", "--lr", "0.1", "--ranks", "1,8", "--link", "25GB/s", "--ran", "3")
    assert program == ["train.py", "--lr", "0.1", "--ran", "3"] and (args.ranks, args.link, args.fsdp) == ("1,8", "25GB/s", True)
    args, program = words("--ranks", "2", "train.py", "--link=1GB/s", "--", "--ranks", "7")
    assert program == ["train.py", "--ranks", "7"] and (args.ranks, args.link, args.fsdp) == ("2", "1GB/s", False)


RIGHT = ["--ranks", "1,8", "--link", "1GB/s"]


@pytest.mark.parametrize(
    "given, says",
    [
        ([], "say what to plan for"),
        (["--ranks", "1"], "say what to plan for"),
        (["--ranks", "none", "--link", "1GB/s"], "--ranks 'none': write numbers of ranks"),
        (["--ranks", "1", "--link", "fast"], "--link 'fast' is no bandwidth"),
        ([*RIGHT, "--latency", "10"], "--latency '10' is no time"),
        ([*RIGHT, "--node", "8"], "belong together"),
        ([*RIGHT, "--inside", "1GB/s"], "belong together"),
        ([*RIGHT, "--inside", "1GB/s", "--node", "0"], "1 rank at least"),
        ([*RIGHT, "--inside-latency", "1us"], "belongs to --inside"),
        ([*RIGHT, "--steps", "3"], "6 at least"),
        ([*RIGHT, "--json", "/nowhere/at/all.json"], "no file can be written there"),
        ([*RIGHT, "--page", "."], "no file can be written there"),
        (["--ranks", "1", "--link", "measured", "--latency", "1us"], "measures latency and bandwidth"),
        (["--ranks", "1", "--link", "measured"], "needs a group: torchrun"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(given, says, monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(UserError, match=says):
        Question.of(words(*given)[0])


def test_units_of_a_model():
    """What fully_shard is usually given: layers of the outermost lists of several."""
    block = lambda: nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])  # noqa: E731
    model = nn.ModuleDict({"enter": nn.Linear(2, 2), "blocks": nn.ModuleList([block(), block()]), "one": nn.Sequential(block())})
    assert layers(model) == ["blocks.0", "blocks.1", "one.0.0", "one.0.1"]
    assert layers(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))) == ["0", "2"]
    model["enter"].bias.requires_grad_(False)
    found = {name: unit for name, _, unit in named([model])}
    assert "enter.bias" not in found and found["enter.weight"] == "" and found["blocks.1.0.bias"] == "blocks.1"


def test_one_rank_knows_nothing_of_the_launcher(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setenv("WORLD_SIZE", "64")
    alone = one_rank()
    assert not any(name.startswith("TORCHELASTIC") for name in alone)
    assert (alone["WORLD_SIZE"], alone["RANK"]) == ("1", "0") and int(alone["MASTER_PORT"]) > 0


@pytest.mark.sampled(2)
@pytest.mark.parametrize("ddp", [True, False], ids=["ddp", "no ddp"])
def test_a_run(tmp_path, ddp):
    """Gradients are there in stages, from the last to the first, whether the program has DDP or not; more steps are asked for
    than the program has."""
    file = tmp_path / "train.py"
    file.write_text(PROGRAM)
    options = ["--ranks", "1,2,64", "--link", "1GB/s", "--fsdp", "--json", "found.json", "--page", "page.html", "--steps", "9"]
    done = run("train.py", "7", *["ddp"] * ddp, *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    work, predictions = found["workload"], found["predictions"]
    sizes = [4800 * 4, *[360_000 * 4] * 3, 600 * 4, 4]
    assert [g["bytes"] for g in work["gradients"]] == sizes and work["memory"]["model"] == sum(sizes)
    ready = [g["ready"] for g in work["gradients"]]
    step = work["forward"] + work["backward"] + work["update"]
    assert ready[0] > ready[1] > ready[2] > ready[3] >= work["forward"] >= step - work["backward"] - work["update"] - 1e-9
    assert [g["unit"].removeprefix("module.") for g in work["gradients"]] == ["0", "1", "2", "3", "4", "4"]
    assert (work["copy"] == 0) == ddp
    assert [(p["way"], p["ranks"]) for p in predictions] == [(way, n) for way in ("DDP", "FSDP2") for n in (1, 2, 64)]
    assert predictions[0]["step"] == pytest.approx(step) and predictions[2]["step"] > step
    assert "efficiency" in done.stdout and "network: 1 GB/s, 10 us a message" in done.stdout
    assert "nothing was compiled" not in done.stdout and (tmp_path / "page.html").stat().st_size > 10_000


def test_a_program_that_trains_nothing(tmp_path):
    done = run(*RIGHT, "-c", "print(1)")
    assert done.returncode == 2 and "does -c train anything?" in done.stderr and "Traceback" not in done.stderr
