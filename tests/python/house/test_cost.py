"""docs/cost.md lists every number of src/cost with its value, and no other."""

from __future__ import annotations

import ast
import importlib
import itertools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
BYTES = {"KiB": 1 << 10, "MiB": 1 << 20}
NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?)(?![\w.])")


def defined(text: str) -> dict[str, str]:
    """Name -> what stands behind its =, of each constant; several may stand in one line, a table in several."""
    found = {}
    for body in re.findall(r"\bconstexpr\s+[\w:]+\s+(k[A-Z][^;]*);", text):
        for name, value in re.findall(r"(k\w+)(?:\[\w*\])?\s*=\s*(\{.*\}|[^,]+)", body, re.DOTALL):
            found[name] = value
    return found


def value_of(text: str, others: dict[str, str]) -> list[float]:
    """The numbers of a constant: one, or those of a table from left to right. Infinite ones and words are left out of a table."""
    if text.startswith("{"):
        return [float(n) for n in NUMBER.findall(text)]
    if "infinity" in text:
        return [float("inf")]
    text = re.sub(r"int64_t\{(\d+)\}", r"\1", text)
    text = re.sub(r"\bk\w+", lambda m: f"({others[m.group()]})", text)
    return [float(eval(compile(ast.parse(text, mode="eval"), "", "eval")))]


def told(cell: str) -> list[float]:
    """The numbers of a table's cell: "256 KiB", "8x3, 12x2", "50e9"."""
    words = cell.split()
    if len(words) == 2 and words[1] in BYTES:
        return [float(words[0]) * BYTES[words[1]]]
    if cell == "inf":
        return [float("inf")]
    return [float(n) for n in NUMBER.findall(re.sub(r"(?<=\d)x(?=\d)", " ", cell))]


def rows(page: str) -> dict[str, list[str]]:
    """Name -> the other cells of its row."""
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("| `k")]
    names = [row[0].strip("`") for row in found]
    assert len(set(names)) == len(names), "a number has two rows"
    return {row[0].strip("`"): row[1:] for row in found}


def differences(constants: dict[str, str], table: dict[str, list[str]]) -> list[str]:
    found = [f"{name} has no row" for name in constants if name not in table]
    found += [f"{name} is no constant" for name in table if name not in constants]
    for name in constants.keys() & table.keys():
        value, unit, decides, measured = table[name][:4]
        if told(value) != value_of(constants[name], constants):
            found.append(f"{name} = {constants[name]}, not {value}")
        if not (unit and decides and measured):
            found.append(f"{name} lacks its unit, what it decides, or what was measured")
    return found


def page() -> dict[str, list[str]]:
    return rows((ROOT / "docs" / "cost.md").read_text())


def test_the_page_lists_every_number_with_its_value():
    constants = {}
    for file in sorted((ROOT / "src" / "cost").glob("*.h")):
        for name, value in defined(file.read_text()).items():
            assert name not in constants, f"{name} is defined twice"
            constants[name] = value
    assert len(constants) > 90  # or the headers are read wrongly
    inside = {name: row for name, row in page().items() if len(row) == 4}
    assert not differences(constants, inside)


def test_numbers_outside_stand_where_the_page_says():
    outside = {name: row for name, row in page().items() if len(row) == 5}
    assert "kWorthThreads" in outside
    for name, row in outside.items():
        constants = defined((ROOT / row[4].strip("`")).read_text())
        assert not differences({name: constants[name]}, {name: row})


def test_numbers_of_python_are_as_the_page_says():
    row = re.compile(r"^\| `([a-zA-Z_]+)` \| (\S+) \|.*\| `(trainc\.[\w.]+)` \|$", re.MULTILINE)
    lines = row.findall((ROOT / "docs" / "cost.md").read_text())
    assert len(lines) > 10
    for name, value, module in lines:
        assert getattr(importlib.import_module(module), name) == float(value), name


@pytest.mark.parametrize("header", sorted((ROOT / "src" / "cost").glob("*.h")), ids=lambda file: file.name)
def test_every_number_has_its_reason(header):
    lines = header.read_text().splitlines()
    for before, line in itertools.pairwise(lines):
        if line.startswith("constexpr"):
            assert (before.startswith("// ") and not before.startswith("// ---")) or "kAny" in line, line


def test_what_differs_is_seen():
    constants = defined("""
constexpr int64_t kRoom = 8 << 20;
constexpr Tile kTiles[] = {{8, 3, true}, {12, kAny}};
constexpr double kHalf = 0.5, kTwice = 2 * kHalf;
""")
    table = rows("""
| `kRoom` | 8 MiB | bytes | a | b |
| `kTiles` | 8x3, 12 | rows | a | b |
| `kHalf` | 0.5 | x | a | b |
| `kTwice` | 1 | x | a | b |
""")
    assert not differences(constants, table)
    assert differences(constants, table | {"kRoom": ["8 KiB", "bytes", "a", "b"]}) == ["kRoom = 8 << 20, not 8 KiB"]
    assert differences(constants, table | {"kTiles": ["8x3", "rows", "a", "b"]})
    assert differences(constants, table | {"kHalf": ["0.5", "x", "a", ""]})
    assert differences(constants, {name: row for name, row in table.items() if name != "kHalf"}) == ["kHalf has no row"]
    assert differences(constants, table | {"kOther": ["1", "x", "a", "b"]}) == ["kOther is no constant"]
