"""docs/*.md name files and functions: they are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted(ROOT.glob("docs/*.md")) + [ROOT / "README.md"]
FOLDERS = ("src", "python", "tests", "bench", "kit", "examples")
FILES = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*") if file.suffix in {".cpp", ".h", ".def", ".py"}]
OF_USERS = {"train.py"}  # in examples of what is called with a program of the user's
NAMED = re.compile(r"`([\w./]+\.(?:cpp|h|def|py))`")
# `file.cpp` (`function`, `another`), and `function` (`file.cpp`)
BESIDE = re.compile(r"`([\w/]+\.(?:cpp|h|py))` ?\(((?:`[\w:.]+`(?:, )?)+)\)|`([\w:.]+)` ?\(`([\w/]+\.(?:cpp|h|py))`")


def files_of(name: str) -> list[Path]:
    return [file for file in FILES if str(file).endswith("/" + name)]


def is_example(name: str) -> bool:
    """`tests/cpp/STAGE/X_test.cpp`: a word of capitals stands for any name."""
    return name in OF_USERS or any(re.fullmatch(r"[A-Z]+", part) for part in re.split(r"[/_.]", name))


def missing(text: str) -> list[str]:
    found = [name for name in NAMED.findall(text) if not is_example(name) and not files_of(name)]
    for file, names, name, its in BESIDE.findall(text):
        file, names = (file, re.findall(r"`([\w:.]+)`", names)) if file else (its, [name])
        sources = "".join(each.read_text() for each in files_of(file))
        parts = [part for each in names for part in re.split(r"::|\.", each)]
        found += [f"{part} in {file}" for part in parts if sources and not re.search(rf"\b{part}\b", sources)]
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_names_is_there(page):
    assert not missing(page.read_text())


def test_the_walk_has_ten_functions_in_their_rooms():
    walk = (ROOT / "docs" / "README.md").read_text().partition("## One training step")[2].partition("\n## ")[0]
    steps = re.findall(r"^\d+\. `([\w:.]+)` \(`([\w/.]+)`", walk, re.MULTILINE)
    assert len(steps) == 10 and not missing("".join(f"`{name}` (`{file}`)" for name, file in steps))


def test_what_is_not_there_is_seen():
    text = "`src/schedule/place.cpp`, `cut.cpp` (`cut_joint`, `no_such`), `Graph::nowhere` (`src/graph/graph.h`), `X_test.cpp`"
    assert missing(text) == ["src/schedule/place.cpp", "no_such in cut.cpp", "nowhere in src/graph/graph.h"]
