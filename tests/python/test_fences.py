"""Who may include whom: docs/README.md's table of fences, checked on the includes themselves."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"

# stage -> folders (or single headers) of ours that its files may include, beside its own and support
ALLOWED = {
    "support": set(),
    "graph": set(),
    "plan": set(),
    "frontend": {"graph"},
    "reference": {"graph"},
    "passes": {"graph", "reference"},
    "loop": {"graph/graph.h"},  # for Op and Dims
    "interpret": {"loop", "graph/graph.h"},
    "emit/llvm": {"loop"},
    "emit/cuda": {"loop"},
    "schedule": {"graph", "loop", "plan"},
    "runtime": {"plan"},
    "compiler": {"graph", "frontend", "passes", "schedule", "loop", "emit/llvm", "emit/cuda", "plan"},
    "bindings": {"graph", "frontend", "passes", "reference", "compiler", "plan", "runtime", "interpret", "loop", "emit/cuda"},
}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
SUFFIXES = {".h", ".hpp", ".cpp", ".def", ".inc"}


def stage_of(path: str) -> str:
    """The stage that a path below src belongs to: "emit/llvm" for emit/llvm/x.cpp, "runtime" for runtime/cpu/x.h."""
    parts = Path(path).parts
    return "/".join(parts[:2]) if parts[0] == "emit" else parts[0]


def breaches(path: str, text: str) -> list[str]:
    """What a file below src includes though it must not."""
    stage = stage_of(path)
    found = []
    for quote, target in INCLUDE.findall(text):
        if quote == '"' and "/" not in target:
            continue  # beside the file itself
        if target.startswith(("llvm/", "llvm-c/")):
            allowed = stage == "emit/llvm" and path != "emit/llvm/emit.h"  # the one header that others include
        elif target.startswith(("torch/", "ATen/", "c10/", "cuda", "Python.h")):
            allowed = False
        elif target.startswith("nanobind/"):
            allowed = stage == "bindings"
        elif quote == '"':
            allowed = stage_of(target) in ALLOWED[stage] | {stage, "support"} or target in ALLOWED[stage]
        else:
            allowed = True  # the C++ library and third parties
        if not allowed:
            found.append(f"src/{path} includes {target}")
    return found


def test_sources_keep_to_the_fences():
    found = [
        breach
        for file in sorted(SOURCE.rglob("*"))
        if file.suffix in SUFFIXES
        for breach in breaches(str(file.relative_to(SOURCE)), file.read_text())
    ]
    assert not found, "\n".join(found)


def test_every_folder_is_a_stage():
    stages = {stage_of(str(file.relative_to(SOURCE))) for file in SOURCE.rglob("*") if file.suffix in SUFFIXES}
    assert stages <= ALLOWED.keys(), f"without a row in ALLOWED: {sorted(stages - ALLOWED.keys())}"


@pytest.mark.parametrize(
    "path, line",
    [
        ("emit/llvm/emit.cpp", '#include "graph/graph.h"'),
        ("runtime/cpu/run.cpp", '#include "loop/loop.h"'),
        ("runtime/runtime.cpp", '#include "compiler/compiler.h"'),
        ("loop/split.cpp", '#include "graph/build.h"'),
        ("emit/llvm/emit.h", "#include <llvm/IR/Module.h>"),
        ("schedule/fuse.cpp", "#include <llvm/ADT/SmallVector.h>"),
        ("bindings/module.cpp", "#include <torch/extension.h>"),
        ("plan/plan.h", '  #  include "graph/graph.h"'),
    ],
)
def test_a_breach_is_seen(path, line):
    assert len(breaches(path, f"#include <vector>\n{line}\n")) == 1


@pytest.mark.parametrize(
    "path, line",
    [
        ("emit/llvm/emit.cpp", "#include <llvm/IR/Module.h>"),
        ("loop/loop.h", '#include "graph/graph.h"'),
        ("runtime/cpu/run.cpp", '#include "runtime/runtime.h"'),
        ("graph/graph.cpp", '#include "graph/ops.def"'),
    ],
)
def test_what_is_allowed_is_allowed(path, line):
    assert breaches(path, line) == []
