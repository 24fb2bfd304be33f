"""Every block of code in the README and in docs/guide is run, as it stands."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "guide").glob("*.md"))]
BLOCK = re.compile(r"^```(\w*)(?: file=(\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# What the README's two lines stand in
BEFORE = """import torch
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""


def blocks() -> list[tuple[str, str, str, str]]:
    """(where, language, file that it is, text)"""
    found = []
    for page in PAGES:
        text = page.read_text()
        for match in BLOCK.finditer(text):
            line = text[: match.start()].count("\n") + 1
            found.append((f"{page.relative_to(ROOT)}:{line}", *match.groups(default="")))
    return found


def run(words: list[str], folder: Path) -> None:
    for _, _, file, text in blocks():
        if file:
            (folder / file).write_text(text)
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "runs in PyTorch" not in done.stderr, done.stderr


def needs(text: str) -> set[str]:
    modules = set(re.findall(r"^(?:import|from) (\w+)", text, re.MULTILINE))
    return modules | ({"accelerate"} if "Trainer(" in text and "transformers" in text else set())


@pytest.mark.parametrize("where, text", [(where, text) for where, language, _, text in blocks() if language == "python"])
def test_python_runs(tmp_path, where, text):
    if missing := [name for name in needs(text) if importlib.util.find_spec(name) is None]:
        pytest.skip(f"{missing[0]} is not installed: make test-trainers runs it")
    (tmp_path / "block.py").write_text((BEFORE if where.startswith("README") else "") + text)
    run([sys.executable, "block.py"], tmp_path)


COMMANDS = {line for _, language, _, text in blocks() if language == "sh" for line in text.splitlines()}


@pytest.mark.parametrize("line", sorted(COMMANDS))
def test_commands_run(tmp_path, line):
    words = shlex.split(line, comments=True)
    assert words[0] == "trainc", "another command has a block without a language"
    run([sys.executable, "-m", *words], tmp_path)


def test_blocks_without_a_language_name_what_there_is():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for where, language, _, text in blocks():
        assert language in ("", "python", "sh"), where
        if not language:
            assert all(line.split()[0] == "make" and line.split()[1] in targets for line in text.strip().splitlines()), where


def headings(text: str) -> set[str]:
    """The anchors that a page's headings have, as GitHub makes them."""
    found = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in found}


def lost(page: Path, text: str) -> list[str]:
    """Links of a page to files and headings that are not there."""
    found = []
    for name, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([^)\s]+))?\)", text):
        target = page.parent / name if name else page
        if not target.exists():
            found.append(name)
        elif anchor and target.suffix == ".md" and anchor not in headings(target.read_text()):
            found.append(f"{name}#{anchor}")
    return found


def test_links_lead_somewhere():
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        assert lost(page, page.read_text()) == [], page.relative_to(ROOT)
    assert lost(ROOT / "README.md", "[a](docs/none.md) [b](docs/cuda.md#the-kit) [c](docs/cuda.md#none)") == [
        "docs/none.md", "docs/cuda.md#none",
    ]  # fmt: skip


def test_every_page_is_listed():
    text = (ROOT / "docs" / "guide" / "README.md").read_text()
    assert all(f"({page.name})" in text for page in PAGES[1:] if page.name != "README.md")
