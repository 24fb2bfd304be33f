"""docs/cost.md lists every number of src/cost with its value, and no other."""

from __future__ import annotations

import ast
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


# Of the modules that decide what becomes a plan: numbers that are no choice.
PLANS = (
    "base/config.py", "base/options.py", "base/plans.py", "base/tuning.py", "jax/split.py", "torch/joint/*.py",
    "torch/graph/*.py", "torch/numbers/*.py", "torch/run/*.py",
)  # fmt: skip
NO_CHOICE = {("trainc.base.options", "MOST")} | {  # "none"
    ("trainc.torch.run.gloo_threads", name)
    for name in ("LOOKS", "PAUSE", "LIMIT")  # how a program's end is waited for
}
PACKAGE = ROOT / "python" / "trainc"


def numbers_of(text: str) -> dict[str, float]:
    """Name -> value of a module's own numbers."""
    found = {}
    for line in ast.parse(text).body:
        targets = line.targets if isinstance(line, ast.Assign) else [line.target] if isinstance(line, ast.AnnAssign) else []
        for target in targets:
            several = isinstance(target, ast.Tuple) and isinstance(line.value, ast.Tuple)
            pairs = zip(target.elts, line.value.elts, strict=True) if several else [(target, line.value)]
            found |= {name.id: number_of(value) for name, value in pairs if isinstance(name, ast.Name)}
    return {name: value for name, value in found.items() if value is not None}


def number_of(node: ast.expr | None) -> float | None:
    """Of a literal, or of arithmetic on literals."""
    literal = (ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop)
    if node is None or not all(isinstance(part, literal) for part in ast.walk(node)):
        return None
    value = eval(compile(ast.Expression(node), "", "eval"))
    return float(value) if type(value) in (int, float) else None


def told_of_python() -> dict[tuple[str, str], float]:
    row = re.compile(r"^\| `([a-zA-Z_]+)` \| (\S+) \|.*\| `(trainc\.[\w.]+)` \|$", re.MULTILINE)
    return {(module, name): float(value) for name, value, module in row.findall((ROOT / "docs" / "cost.md").read_text())}


def test_numbers_of_python_are_as_the_page_says():
    listed = told_of_python()
    assert len(listed) > 20
    for (module, name), value in listed.items():
        file = PACKAGE.joinpath(*module.split(".")[1:]).with_suffix(".py")
        assert numbers_of(file.read_text()).get(name) == value, f"{module}.{name}"


def test_numbers_of_python_that_decide_are_listed():
    known = told_of_python().keys() | NO_CHOICE
    files = [file for pattern in PLANS for file in PACKAGE.glob(pattern)]
    modules = {".".join(("trainc", *file.relative_to(PACKAGE).with_suffix("").parts)): file for file in files}
    found = {(module, name) for module, file in modules.items() for name in numbers_of(file.read_text())}
    assert not found - known, "they have no row in docs/cost.md, and no place in NO_CHOICE"
    assert NO_CHOICE <= found, "there is no such number any more"


def test_numbers_of_a_module_are_seen():
    text = "FEW = 16\n_SHARE: float = 1 / 2\nN = 'x'\nON = True\nOF = FEW + 1\nB = LIKE = 2\nA, C = 5, 6\ndef f():\n    D = 3\n"
    assert numbers_of(text) == {"FEW": 16, "_SHARE": 0.5, "B": 2, "LIKE": 2, "A": 5, "C": 6}


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
