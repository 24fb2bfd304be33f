"""What a newcomer types: wrong words, names and settings are told in a line, and interrupted commands leave nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
import torch

import trainc
from trainc import cli
from trainc.base import config
from trainc.cli.max_batch import LARGEST, report
from trainc.cli.words import COMMANDS, command_line


@pytest.mark.parametrize(
    "words, said",
    [
        ("ruin train.py", "trainc: there is no command 'ruin': did you mean run?"),
        ("train.py --lr 3", "trainc: there is no command 'train.py': did you mean trainc run train.py --lr 3?"),
        ("xyz", "there are run, compare, max-batch"),
        ("run --lr 3 .", "what the program is to get stands behind it: trainc run . --lr"),
        ("run", "trainc run: which script?"),
        ("run -m", "trainc run: which script?"),
        ("run --tune best train.py", "trainc run: argument --tune: invalid choice: 'best' (choose from"),
        ("run --memory 10QB train.py", "trainc run: memory='10QB' is no size"),
        ("compare missing.py", "trainc compare: can't open file"),
        ("compare --steps 3 .", "trainc compare: --steps 3: with fewer than 4"),
        ("cache", "trainc cache: the following arguments are required: ACTION"),
        ("info now", "trainc info: there is no option now"),
        ("bug-report missing", "trainc bug-report: [Errno 2] No such file"),
    ],
)
def test_wrong_words_are_told_in_a_line(capsys, words, said):
    with pytest.raises(SystemExit) as ended:
        cli.main(words.split())
    told = capsys.readouterr()
    assert ended.value.code == 2 and told.out == ""
    assert said in told.err and len(told.err.splitlines()) == 1, told.err


def test_without_words_there_is_help(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main([])
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert all(f"\n    {command}" in told for command in COMMANDS) and "observe" not in told
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"trainc {trainc.__version__}\n"


def test_every_command_is_offered():
    (choices,) = (action.choices for action in command_line()._actions if action.choices)
    assert set(choices) == {*COMMANDS, "observe"}


def test_a_wrong_setting_is_told_in_a_line(capsys, monkeypatch):
    monkeypatch.setattr(config, "cache_size", "lots")
    with pytest.raises(SystemExit):
        cli.main(["cache", "info"])
    assert capsys.readouterr().err.startswith("trainc cache: TRAINC_CACHE_SIZE='lots' is no size")
    monkeypatch.setattr(config, "engine", "steam")
    with pytest.raises(trainc.UserError, match="'steam': there are core and interpreter"):
        trainc.compile(torch.nn.Linear(2, 2))(torch.ones(1, 2))


def test_a_batch_that_is_the_largest_looked_at_is_no_answer():
    told = report("Net", 4, LARGEST, {4: 10, LARGEST: 1000}, 5000)
    assert "larger ones were not looked at" in told and "The largest" not in told


# ---- stdout, signals ------------------------------------------------------------------------------------------------------


def start(*words: str, cwd, **options) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "trainc", *words], cwd=cwd, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL), **options,
    )  # fmt: skip


def test_nobody_reads_the_answer(tmp_path):
    reading, writing = os.pipe()
    os.close(reading)
    process = start("operations", cwd=tmp_path, stdout=writing)
    os.close(writing)
    assert process.communicate(timeout=60)[1] == "" and process.returncode == 1
    with open("/dev/full", "w") as full:
        process = start("cache", "info", cwd=tmp_path, stdout=full)
        assert process.communicate(timeout=60)[1] == "trainc cache: its answer cannot be written: No space left on device\n"


def test_an_answer_is_written_with_what_letters_there_are(tmp_path):
    folder = tmp_path / "plänе"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "TRAINC_CACHE_DIR": str(folder)}
    process = start("cache", "info", cwd=tmp_path, stdout=subprocess.PIPE, env=environment)
    out, said = process.communicate(timeout=60)
    assert said == "" and "pl\\xe4n" in out


def test_an_interrupted_comparison_leaves_nothing_behind(tmp_path):
    """Its child ends, its files go, and no traceback is shown. (Ctrl-C goes the same way.)"""
    (tmp_path / "train.py").write_text("import os, time\nopen('pid', 'w').write(str(os.getpid()))\ntime.sleep(100)\n")
    (tmp_path / "temporary").mkdir()
    environment = {**os.environ, "TMPDIR": str(tmp_path / "temporary")}
    process = start("compare", "train.py", cwd=tmp_path, stdout=subprocess.PIPE, env=environment)
    for _ in range(600):
        if (tmp_path / "pid").exists() and (tmp_path / "pid").read_text():
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    out, said = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM and (out, said) == ("", "eager ...\n")
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
    assert not list((tmp_path / "temporary").iterdir())
