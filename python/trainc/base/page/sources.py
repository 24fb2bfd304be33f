"""What files tell of a kernel: the model's own code, and what TRAINC_DUMP wrote."""

from __future__ import annotations

import linecache
import os
import re
import sys
from pathlib import Path

from trainc.base.page.phases import Kernel, Phase

_LINE = re.compile(r"(?P<file>.+):(?P<line>\d+)(?: \(.*\))?")
AROUND = 2  # lines of the user's code shown before and after one


def source_of(origin: str) -> list[tuple[int, str, bool]]:
    """(number, text, whether it is the line itself) of the code around a line of the model; none where it cannot be read."""
    found = _LINE.fullmatch(origin)
    file = found and _file_of(found["file"])
    if not found or not file:
        return []
    linecache.checkcache(file)
    here = int(found["line"])
    lines = [(n, linecache.getline(file, n).rstrip("\n")) for n in range(here - AROUND, here + AROUND + 1)]
    return [(n, text, n == here) for n, text in lines if n > 0 and (text or n == here)]


def _file_of(name: str) -> str:
    """Where the file of that name lies; "" where none is loaded, or several are. Origins may name a file without its folder."""
    if os.path.isfile(name):
        return name
    files = {getattr(module, "__file__", None) or "" for module in list(sys.modules.values())}
    known = [file for file in files if f"{os.sep}{file}".endswith(f"{os.sep}{name}") and os.path.isfile(file)]
    return known[0] if len(known) == 1 else ""


def dumps_of(kernel: Kernel) -> list[tuple[str, Path]]:
    """(what, file) that TRAINC_DUMP=loop,asm wrote of a kernel's code, by whichever plan had it first."""
    found = []
    for what, ending in (("loop nest", "loop"), ("assembly", "s"), ("CUDA C++", "cu")):
        files = sorted(_dump_directory().glob(f"*.{kernel.code}.{ending}")) if kernel.code else []
        found += [(what, files[0])] if files else []
    return found


def graphs_of(phase: Phase) -> list[tuple[str, str]]:
    """(what, text) of the graph that a plan was made of, before and after the passes: they run again for it."""
    if phase.graph is None:
        return []
    from trainc import _core

    text = phase.graph.text()
    return [("as it was captured", _core.import_text(text)), ("after the passes", _core.optimized_text(text))]


def _dump_directory() -> Path:
    return Path(os.environ.get("TRAINC_DUMP_DIR") or "trainc-dump")


__all__ = ["dumps_of", "graphs_of", "source_of"]
