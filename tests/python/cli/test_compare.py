"""`trainc compare`: what it says of two runs, and the runs themselves."""

from __future__ import annotations

import json
import subprocess
import sys
import threading

import pytest
from programs import PROGRAMS

from trainc.base.errors import UserError
from trainc.cli.compare import AGAIN, Comparison, Price, Run, as_json, by_trainc, report

STEPS = 10


def a_run(way: str, step: float, losses: list[float], first: float = 2.0, compiled: list[str] | None = None) -> Run:
    ends = [first + step * i for i in range(STEPS)]
    return Run(way, of_steps(losses), ends, 10**9, 0.0, compiled, None, [])


def of_steps(losses: list[float]) -> list[list[float]]:
    return [[loss] for loss in losses]


COMPILED = ("compiled Net: 3 kernels for 1 signature",)


def compared(
    step: float, losses=None, again: float = 1.0, start: float = 2.0, compiled=COMPILED, eager=None
) -> Comparison:  # fmt: skip
    """Eager at a second a step, trainc at `step`, eager once more at `again`."""
    wanted = [3.0 - 0.1 * i for i in range(STEPS)]
    runs = {
        "eager": a_run("eager", 1.0, wanted), "trainc": a_run("trainc", step, losses or wanted, start, list(compiled)),
        AGAIN: a_run("eager", again, eager or wanted),
    }  # fmt: skip
    return Comparison("train.py", 0, runs)


def test_what_is_gained_is_said():
    text = report(compared(0.5, start=7.0), 36_000, Price.of("$2.5/h"))
    assert "a step takes 0.5 s instead of 1 s, 50% less; its start, 5.5 s longer, is paid back after 11 steps." in text
    assert "36,000 steps take 5 h instead of 10 h, and cost $12.50 instead of $25.00." in text
    assert "losses are eager's" in text and "2.00x" in text


@pytest.mark.parametrize("step, word", [(0.98, "as fast as"), (1.2, "slower than")])
def test_what_is_not_worth_it_is_said(step, word):
    text = report(compared(step, start=9.0), 1000, None)
    assert f"not worth it here: a step is {word} eager's" in text and "1,000 steps take" in text
    if step > 1:
        assert "eager is the better choice" in text


def test_no_gain_is_told_from_the_machines_drift():
    found = compared(0.9, again=1.4)
    assert found.gain("trainc") == 0.0
    text = report(found, None, None)
    assert "whether a step is faster is not told: 0.9 s, and eager's two runs 1 s, 1.4 s." in text
    assert "not worth it" not in text and "Eager's two runs differ by 33%" in text
    assert "70% less" in report(compared(0.36, again=1.4), None, None)  # of either run, more than the drift


def test_what_was_compiled_is_said():
    assert "trainc compiled Net: 3 kernels for 1 signature." in report(compared(0.5), None, None)
    left = "left LBFGS to PyTorch: not one of AdamW"
    assert f"trainc {left}." in report(compared(0.5, compiled=(left,)), None, None)


def test_losses_that_tell_little_are_not_called_eagers():
    """A training that multiplies every rounding: the rule lets it pass, and the report does not make it a proof."""
    wanted = [3.0 - 0.1 * i for i in range(STEPS)]
    found = compared(0.5, [loss * 1.2 for loss in wanted])
    found.disturbed = [of_steps([loss * 1.1 for loss in wanted])]
    text = report(found, None, None)
    assert found.differs("trainc") == [] and "losses are eager's" not in text
    assert "by at most 2.0e-01, eager's own by 1.0e-01 when the last bit" in text and "losses tell little" in text
    found.disturbed = [of_steps([loss * (1 + 1e-5) for loss in wanted])]
    found.runs["trainc"].losses = [[loss * (1 + 2e-5)] for loss in wanted]
    assert "losses tell little" not in report(found, None, None)


def test_losses_that_differ_are_judged_by_the_rule():
    wanted = [3.0 - 0.1 * i for i in range(STEPS)]
    near, far = [loss * (1 + 1e-6) for loss in wanted], [loss * (1 + 1e-5) for loss in wanted]
    assert compared(0.5, near).differs("trainc") == []
    found = compared(0.5, far)
    assert len(found.differs("trainc")) == STEPS and "LOSSES DIFFER" in report(found, None, None)
    found.disturbed = [of_steps([loss * (1 + 3e-6) for loss in wanted])]  # eager itself parts by that
    assert found.differs("trainc") == []
    assert compared(0.5, wanted[:-1]).differs("trainc") == ["9 losses, where eager has 10"]
    assert "cannot be compared" in report(compared(0.5, eager=far), None, None)
    nan = [*wanted[:5], *[float("nan")] * 5]
    found = compared(0.5, nan)
    assert found.differs("trainc")
    found.runs["eager"].losses = found.runs[AGAIN].losses = [[loss] for loss in nan]
    assert found.differs("trainc") == []  # NaN as eager's


def test_steps_of_varying_numbers_of_losses():
    """As of a line search, which the last bit may end earlier."""
    wanted = [[3.0 - 0.1 * i, 2.9 - 0.1 * i] for i in range(STEPS)]
    fewer = [[*wanted[0]], wanted[1][:1], *wanted[2:]]
    found = compared(0.5)
    for run in found.runs.values():
        run.losses = wanted
    found.runs["trainc"].losses = fewer
    assert found.differs("trainc") == ["19 losses, where eager has 20"]
    found.disturbed = [fewer]
    assert found.differs("trainc") == [] and "losses part from eager's" in report(found, None, None)
    found.runs["trainc"].losses = [[loss * 1.01 for loss in step] for step in fewer]
    assert len(found.differs("trainc")) == 2 * STEPS - 1
    found.runs[AGAIN].losses = fewer  # eager's own, from the same seed
    assert found.differs("trainc") is None and "cannot be compared" in report(found, None, None)


def test_what_trainc_said_is_found():
    lines = ["trainc run: nothing was compiled: no optimizer", "/home/trainc/a.py:3: TraincWarning: trainc: unet runs in PyTorch"]
    assert by_trainc([*lines, "loss 3", lines[0]]) == ["nothing was compiled: no optimizer", "unet runs in PyTorch"]


def test_nothing_compiled_is_said():
    found = compared(1.0, compiled=())
    found.runs["trainc"].reason = "the program compiles Net itself, which stays as it is"
    assert "trainc compiled nothing: the program compiles Net itself" in report(found, None, None)


def test_prices():
    assert Price.of("2.5/h").text(2) == "5.00" and Price.of("$2.5").text(1000) == "$2,500.00"
    assert Price.of("0.5 EUR/h").text(1) == "0.50 EUR" and Price.of("€1/hour").text(3) == "€3.00"
    for text in ("", "free", "1/day", "-1"):
        with pytest.raises(UserError, match="price of an hour"):
            Price.of(text)


def test_json_is_json():
    found = json.loads(as_json(compared(0.5), 3600, Price.of("2/h")))
    trainc = found["runs"]["trainc"]
    assert trainc["losses_agree"] is True and trainc["faster_by"] == pytest.approx(0.5)
    assert found["runs"]["eager"]["total_hours"] == pytest.approx(1, rel=1e-2)
    assert trainc["total_price"] == pytest.approx(1, rel=1e-2)
    assert len(trainc["losses"]) == STEPS and trainc["step_seconds"]["quartiles"] == [0.5, 0.5]
    diverged = as_json(compared(0.5, [3.0, *[float("nan")] * (STEPS - 1)]), None, None)
    assert json.loads(diverged, parse_constant=pytest.fail)["runs"]["trainc"]["losses"][1] == [None]


# ---- the runs -----------------------------------------------------------------------------------------------------------


def compare(tmp_path, text: str, *options: str) -> subprocess.CompletedProcess:
    (tmp_path / "train.py").write_text(text)
    words = [sys.executable, "-m", "trainc", "compare", *options, "train.py"]
    return subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=600)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name, steps, losses", [("epochs", 6, 1), ("gan", 4, 3), ("no_optimizer", 4, 1)])
def test_a_program_side_by_side(tmp_path, name, steps, losses):
    done = compare(tmp_path, PROGRAMS[name][0], "--steps", str(steps), "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    runs = json.loads(done.stdout)["runs"]
    assert list(runs) == ["eager", "trainc", AGAIN]
    for run in runs.values():
        assert len(run["losses"]) == steps and len(run["losses"][-2]) == losses and run["peak_bytes"] > 10**7
        assert run["start_seconds"] > 0 and run["step_seconds"]["median"] > 0
    assert any(line.startswith("compiled ") and "signature" in line for line in runs["trainc"]["compiled"])
    assert runs["trainc"]["losses_agree"] and runs[AGAIN]["losses"] == runs["eager"]["losses"]


def observe(tmp_path, monkeypatch, train) -> dict:
    """The record of `train(step)`, called by a program that goes on whatever a step raises."""
    import os

    import torch

    from trainc.cli.observe import Observing

    def leave(status):
        raise Left

    monkeypatch.setattr(os, "_exit", leave)
    with pytest.raises(Left), Observing("eager", 4, 0, str(tmp_path / "record.json")):
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step():
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()

        train(step)
    return json.loads((tmp_path / "record.json").read_text())


class Left(BaseException):
    """Of os._exit."""


def test_a_program_that_catches_its_end_ends(tmp_path, monkeypatch):
    caught = []

    def train(step):
        for _ in range(100):
            try:
                step()
            except SystemExit as error:
                caught.append(error)

    record = observe(tmp_path, monkeypatch, train)
    assert len(caught) == 2 and len(record["ends"]) == len(record["losses"]) == 4


def test_a_program_that_trains_in_a_thread_ends(tmp_path, monkeypatch):
    ended = []

    def train(step):
        def work():
            try:
                for _ in range(100):
                    step()
            except BaseException as error:
                ended.append(type(error))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        raise ended[0]

    record = observe(tmp_path, monkeypatch, train)
    assert ended == [Left] and len(record["ends"]) == 4


SEEDS_ITSELF = PROGRAMS["epochs"][0].replace("torch.manual_seed(1)\n", "")


@pytest.mark.thorough
def test_the_seed_is_set_before(tmp_path):
    """A program that seeds nothing is repeatable; one that seeds from the clock is not."""
    done = compare(tmp_path, SEEDS_ITSELF, "--steps", "4", "--json")
    assert json.loads(done.stdout)["runs"]["trainc"]["losses_agree"] is True
    clock = "import time, torch\n" + SEEDS_ITSELF.replace("data = [", "torch.manual_seed(time.time_ns() % 2**60)\ndata = [")
    done = compare(tmp_path, clock, "--steps", "4")
    assert done.returncode == 0 and "Losses cannot be compared" in done.stdout


def test_other_numbers_are_seen(tmp_path):
    """A model that computes something else while it is compiled."""
    scale = "(1.001 if torch.compiler.is_compiling() else 1.0)"
    other = PROGRAMS["epochs"][0].replace("return self.fc2(", f"return {scale} * self.fc2(")
    done = compare(tmp_path, other, "--steps", "4")
    assert done.returncode == 1 and "LOSSES DIFFER" in done.stdout and "verify=True" in done.stdout
    assert done.stderr.count("disturbed") == 3


@pytest.mark.thorough
def test_what_cannot_be_compared(tmp_path):
    done = compare(tmp_path, "print('last words')\nraise SystemExit(4)")
    assert done.returncode == 2 and "ended with 4" in done.stderr and "last words" in done.stderr
    assert "does train.py train anything?" in compare(tmp_path, "print('nothing')").stderr
    assert "--price 'free'" in compare(tmp_path, "", "--price", "free").stderr
    step = "import torch, trainc\nm = torch.nn.Linear(2, 2)\no = torch.optim.SGD(m.parameters())\n@trainc.train_step\n"
    step += "def step(x):\n    m(x).sum().backward()\n    o.step()\nfor _ in range(5): step(torch.ones(1, 2))\n"
    assert "which a trainc.train_step has not" in compare(tmp_path, step, "--steps", "4").stderr
    assert "fewer than 4" in compare(tmp_path, "", "--steps", "2").stderr
