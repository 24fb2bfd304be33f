"""The wheel works from another directory, and the commands of the Makefile are what README.md says."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", folder, ROOT]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return next(folder.glob("trainc-*.whl"))


def test_the_wheel_trains_from_another_directory(wheel, tmp_path):
    site = tmp_path / "site"
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", site, wheel], check=True)
    program = tmp_path / "train.py"
    program.write_text(
        "import sys\n"
        f"sys.path[:0] = [{str(site)!r}, {sysconfig.get_path('purelib')!r}]\n"
        "import torch, trainc, trainc._core\n"
        "from trainc.base import records\n"
        "trainc.config.fallback = False\n"
        "print(trainc.__file__, trainc._core.__file__)\n"
        "model = torch.nn.Linear(4, 3)\n"
        "expected = model(torch.ones(2, 4)).sum().item()\n"
        "model, optimizer = trainc.compile(model, torch.optim.AdamW(model.parameters()))\n"
        "loss = model(torch.ones(2, 4)).sum()\n"
        "loss.backward()\n"
        "optimizer.step()\n"
        "assert abs(loss.item() - expected) < 1e-5\n"
        "assert [c.engine for c in records.of(model)] == ['core']\n"
    )
    # -S: without the environment's .pth files, one of which leads to python/trainc
    done = subprocess.run([sys.executable, "-S", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(path.startswith(str(site)) for path in done.stdout.split())


def test_the_wheel_brings_the_backend_and_the_command(wheel):
    with zipfile.ZipFile(wheel) as archive:
        entries = next(name for name in archive.namelist() if name.endswith("entry_points.txt"))
        text = archive.read(entries).decode()
        names = archive.namelist()
    assert re.search(r"\[torch_dynamo_backends\]\s+trainc = ", text)
    assert re.search(r"\[console_scripts\]\s+trainc = trainc.cli:main", text)
    assert not [name for name in names if name.startswith(("tests/", "src/", "include/", "lib/"))]


def test_entry_points_lead_somewhere():
    points = [p for group in ("torch_dynamo_backends", "console_scripts") for p in importlib.metadata.entry_points(group=group)]
    ours = [point for point in points if point.name == "trainc"]
    assert len(ours) == 2
    assert all(callable(point.load()) for point in ours)


def test_every_command_of_the_readme_is_in_the_makefile():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z-]+)", (ROOT / "README.md").read_text() + (ROOT / "docs" / "README.md").read_text()))
    assert {"demo", "test", "bench"} <= named <= targets
