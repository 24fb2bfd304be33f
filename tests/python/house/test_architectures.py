"""`make architectures` on one model; and what it finds where something differs."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import forked

FOLDER = Path(__file__).parents[2] / "architectures"


def test_one_architecture(tmp_path):
    run = [sys.executable, FOLDER, "--only", "gpt2", "--door", "compile", "--out", tmp_path / "results.jsonl"]
    done = subprocess.run(run, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert "gpt2 (compile): compiled" in done.stdout


CHANGES = {
    "": None,
    "mine[0][2] *= 1.001": "step 3: loss",
    "mine[1]['w'][0] += 1e-3": "the gradient of w differs",
    "mine[1]['unused'] = mine[1]['w']": "the gradient of unused is there",
}
PROGRAM = """
import copy, json, sys, torch
from judge import differences
eager = [2.0, 1.9, 1.8], {"w": torch.ones(3), "unused": None}
disturbed = [([x * (1 + 1e-7) for x in eager[0]], {"w": torch.ones(3) * (1 + 1e-6), "unused": None})]
for change in json.loads(sys.argv[1]):
    mine = copy.deepcopy(eager)
    exec(change)
    print(json.dumps(differences(eager, lambda: disturbed, mine)))
"""


def test_differences_are_found():
    done = forked.run(["-c", PROGRAM, json.dumps(list(CHANGES))], env={**os.environ, "PYTHONPATH": str(FOLDER)})
    assert done.returncode == 0, done.stderr[-2000:]
    for line, wanted in zip(done.stdout.splitlines(), CHANGES.values(), strict=True):
        found = json.loads(line)
        assert (not found) if wanted is None else len(found) == 1 and wanted in found[0]


READ_AND_WRITTEN = """
import sys
from pathlib import Path
import page
page.write(page.read(Path(sys.argv[1])), Path(sys.argv[2]))
"""


def test_a_page_tells_its_verdicts(tmp_path):
    """--known: what is read of the page is written as the page again, but for its date and the order of what is equal."""
    shown, again = Path(__file__).parents[3] / "docs" / "architectures.md", tmp_path / "again.md"
    done = forked.run(["-c", READ_AND_WRITTEN, shown, again], env={**os.environ, "PYTHONPATH": str(FOLDER)})
    assert done.returncode == 0, done.stderr[-2000:]

    def told(page):
        return [sorted(re.findall(r"[\w.]+ \d+|[\w-]+", line)) for line in page.read_text().splitlines()[3:]]

    assert told(again) == told(shown)


MADE = """
import sys, make
for name in sys.argv[1:]:
    print(name, make.make(name).kind.__name__)
"""


def test_small_configurations_hold_together():
    """A part keeps what the whole tells it (which stages a backbone gives); groups are as many as channels; the sections of a
    head are as wide as it is; a sound has a channel."""
    models = {
        "depth_anything": "DepthAnythingForDepthEstimation",
        "mimi": "MimiModel",
        "glm4v_text": "Glm4vTextModel",
        "dac": "DacModel",
    }
    done = forked.run(["-c", MADE, *models], env={**os.environ, "PYTHONPATH": str(FOLDER)})
    assert done.returncode == 0, done.stderr[-2000:]
    assert dict(line.split() for line in done.stdout.splitlines()) == models
