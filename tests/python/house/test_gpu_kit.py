"""The kit for a machine with a GPU (kit/): rehearsed on a stand-in, whatever fails, and complete where it is put together."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest
import trainc._core

ROOT = Path(__file__).resolve().parents[3]


def program(name: str) -> types.ModuleType:
    """One of the kit's, under a name of its own: the benchmark has a run.py, too."""
    spec = importlib.util.spec_from_file_location(f"kit_{name}", ROOT / "kit" / f"{name}.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


kit = program("run")


def rehearse(root: Path, out: Path, *words: str) -> tuple[dict[str, dict], str]:
    command = [sys.executable, root / "kit" / "run.py", "--rehearse", "--out", out, *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=out.parent)
    assert "Traceback" not in done.stderr, done.stderr
    return kit.results(out), done.stdout


def test_parts_run_on_a_stand_in(tmp_path):
    found, said = rehearse(ROOT, tmp_path / "results", "--only", "a2", "a4", "b1")
    assert {name: row["ok"] for name, row in found.items()} == {"a2": True, "a4": True, "b1": True}, said
    assert found["a4"]["facts"]["passed"] == found["a4"]["facts"]["cases"] == 4
    assert found["b1"]["facts"]["masks"] == 36 and found["b1"]["facts"]["differ"] == []
    assert "NVRTC 13" in said and len(said.splitlines()) < 100


def test_a_rehearsed_benchmark_compiles_for_the_stand_in(tmp_path):
    """The kit's module has no compiler for CPUs."""
    env = kit.environment(kit.PARTS[0], kit.arguments(["--rehearse"]), tmp_path)
    env |= {"TRAINC_DUMP": "plan", "TRAINC_DUMP_DIR": str(tmp_path)}
    command = [sys.executable, ROOT / "bench" / "gpu.py", "--child", "contest", "tiny", "bf16", "trainc", "1", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    plans = [file.read_text().splitlines()[0] for file in tmp_path.rglob("*.plan.txt")]
    assert plans and all(" for interpret: " in line for line in plans), plans


PARTS = {
    "good": "import json, sys; json.dump({'line': 'all is well'}, open(sys.argv[-1], 'w'))",
    "wrong": "import json, sys; json.dump({'error': {'what': 'kernel rows: CUDA, launching it: 701', 'lines': ['rows.cu']}}, "
    "open(sys.argv[-1], 'w')); sys.exit(1)",
    "crash": "import os; print('last words', flush=True); os.abort()",
    "endless": "import subprocess, sys, time; subprocess.Popen(['sleep', '60']); time.sleep(60)",
}


@pytest.fixture
def parts(monkeypatch, tmp_path):
    made = []
    for i, (name, code) in enumerate(PARTS.items()):
        (tmp_path / f"{name}.py").write_text(code)
        made.append(kit.Part(f"a{i}", name, (str(tmp_path / f"{name}.py"),), 2 if name == "endless" else 60))
    made.append(kit.Part("b0", "good again", (str(tmp_path / "good.py"),)))
    monkeypatch.setattr(kit, "PARTS", made)
    return tmp_path / "results"


def test_a_part_that_fails_stops_no_other(parts, capsys):
    assert kit.main(["--rehearse", "--out", str(parts)]) == 1
    found = kit.results(parts)
    assert [found[name]["ok"] for name in ("a0", "a1", "a2", "a3", "b0")] == [True, False, False, False, True]
    assert found["a3"]["why"] == "it was not over after 2 s" and found["a3"]["seconds"] < 10
    assert "last words" in found["a2"]["error"]["lines"]
    text = capsys.readouterr().out
    assert "The first error, of a1:\nkernel rows: CUDA, launching it: 701\nrows.cu" in text and "all is well" in text
    assert (parts / "summary.txt").exists()


def test_parts_that_measure_nothing_run_beside_each_other(monkeypatch, tmp_path):
    """Each of two waits for the other; the one that wants to be alone sees neither at work."""
    (tmp_path / "meet.py").write_text(
        "import pathlib, sys, time\n"
        "here, mine, other = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]\n"
        "(here / mine).touch()\n"
        "while not (here / other).exists(): time.sleep(0.01)\n"
        "(here / f'{mine}.over').touch()\n"
    )
    (tmp_path / "alone.py").write_text(
        "import pathlib, sys\nassert len(list(pathlib.Path(sys.argv[1]).glob('*.over'))) == int(sys.argv[2])\n"
    )
    meet, alone = str(tmp_path / "meet.py"), str(tmp_path / "alone.py")
    parts = [
        kit.Part("a0", "before them", (alone, str(tmp_path), "0"), 20, alone=True),
        kit.Part("a1", "one", (meet, str(tmp_path), "x", "y"), 20),
        kit.Part("b1", "the other", (meet, str(tmp_path), "y", "x"), 20),
        kit.Part("b2", "after them", (alone, str(tmp_path), "2"), 20, alone=True),
    ]
    monkeypatch.setattr(kit, "PARTS", parts)
    assert [[part.name for part in group] for group in kit.groups(parts)] == [["a0"], ["a1", "b1"], ["b2"]]
    assert kit.main(["--rehearse", "--out", str(tmp_path / "results"), "--beside", "2"]) == 0


def test_it_goes_on_where_it_was(parts, tmp_path, capsys):
    kit.main(["--rehearse", "--out", str(parts), "--only", "a0", "a1"])
    (tmp_path / "wrong.py").write_text(PARTS["good"])
    also = tmp_path / "also"
    kit.main(["--rehearse", "--out", str(parts), "--also", str(also)])
    lines = (parts / "a.jsonl").read_text().splitlines()
    assert [json.loads(line)["part"] for line in lines] == ["a0", "a1", "a1", "a2", "a3"]
    assert kit.results(parts)["a1"]["ok"]
    assert {file.name for file in also.iterdir()} == {"a.jsonl", "b.jsonl", "summary.txt"}
    capsys.readouterr()
    kit.main(["--rehearse", "--out", str(parts), "--seconds", "40"])
    assert "no time left" in capsys.readouterr().out


def test_a_long_error_leaves_the_summary_short():
    row = {"part": "a1", "ok": False, "seconds": 1.0, "facts": {"line": "x"}, "table": ["y"] * 200,
           "error": {"what": "w\n" * 300, "lines": ["z\n" * 50] * 50}}  # fmt: skip
    lines = kit.summary({part.name: {**row, "part": part.name} for part in kit.PARTS}, kit.PARTS)
    assert len(lines) < 100 and lines[-1].endswith("more lines in summary.txt")


def test_what_is_put_together_is_complete(tmp_path):
    """All that the parts import is in it; with the module beside, it runs from where it is."""
    out = tmp_path / "gpu-kit"
    made = subprocess.run([sys.executable, ROOT / "kit" / "make.py", "--out", out, "--no-module", "--no-tokens"],
                          capture_output=True, text=True)  # fmt: skip
    assert made.returncode == 0, made.stderr
    facts = json.loads((out / "MANIFEST.json").read_text())
    assert facts["bytes"] < 16 << 20 and (out / "include" / "fmt" / "format.h").exists()
    assert not list(out.rglob("test_*")) and not list((out / "tests").glob("cpp"))
    shutil.copy(trainc._core.__file__, out / "python" / "trainc")
    found, said = rehearse(out, tmp_path / "results", "--only", "a1", "a2")
    assert found["a1"]["ok"] and found["a2"]["ok"], said


def test_bytes_and_versions_that_a_module_needs_are_read():
    needs = program("make").needs(Path(trainc._core.__file__))
    assert any(name.startswith("libc.so") for name in needs["libraries"])
    assert (2, 17) < tuple(map(int, needs["glibc"].split("."))) < (3, 0)
