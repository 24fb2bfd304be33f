"""What a report shows, as plain figures: of an Explanation, with nothing compiled or run again."""

from __future__ import annotations

import dataclasses
import linecache
import os
import re
import sys
from pathlib import Path
from typing import Any

from trainc.base import records
from trainc.base.report import BESIDE, Explanation, scaled, why_extern

# A line of a plan's text (src/plan/print.cpp)
_BUFFER = re.compile(
    r"  (?P<name>.+): (?P<place>saved temp|saved|temp) \+(?P<offset>\d+) (?P<type>\w+\[[\d,]*\]).* strides \[[^]]*\], "
    r"(?P<bytes>\d+) bytes(?: over .+)?, live \[(?P<first>-?\d+), (?P<last>-?\d+)\]"
)
_STEP = re.compile(r"  (?P<number>\d+): .* = (?:random p=[^,]*, )?kernel (?P<kernel>\S+) over ")
_LINE = re.compile(r"(?P<file>.+):(?P<line>\d+)(?: \(.*\))?")
SOURCE_AROUND = 2  # lines of the user's code shown before and after one


@dataclasses.dataclass
class Kernel:
    """One step of a plan: a kernel, a draw, or a call of PyTorch."""

    phase: str  # "forward", "backward", "optimizer", ...
    plan: str
    number: int  # in its plan
    name: str
    kind: str
    flops: int
    bytes: int
    origins: list[str]
    reason: str = ""  # of a call of PyTorch
    seconds: float = 0.0
    start: float = 0.0  # seconds after the first kernel began, if the plans ran one right after another
    code: str = ""  # the name of its code in the dumps

    @property
    def line(self) -> str:
        return self.origins[0] if self.origins else ""


@dataclasses.dataclass
class Block:
    """Memory that a plan uses, for steps `first` to `last`."""

    arena: str  # "kept" (forward to backward) or "temporary"
    name: str
    type: str
    offset: int
    bytes: int
    first: int
    last: int
    line: str


@dataclasses.dataclass
class Phase:
    """One plan of the step."""

    name: str
    plan: str
    text: str  # the plan's own; "" where it has none
    kernels: list[Kernel]
    blocks: list[Block]
    temporary: int
    kept: int
    memory: bool  # whether its blocks are known


class Figures:
    """Of the signature that ran last with timing on; where none did, of the one compiled last."""

    def __init__(self, explanation: Explanation, peaks: dict | None = None):
        self.explanation, self._peaks = explanation, peaks
        self.phases = [_phase(name, plan) for name, plan in _plans(explanation.compilations)]
        clock = 0.0
        for kernel in self.kernels:
            kernel.start = clock
            clock += kernel.seconds

    @property
    def peaks(self) -> dict | None:
        """{"flops", "bytes": a second, "from": how that is known}: what was given, or the fastest kernel where that is faster."""
        if self._peaks is None:
            return None
        fastest = max((k.flops / k.seconds for k in self.kernels if k.seconds), default=0.0)
        if fastest <= self._peaks["flops"]:
            return self._peaks
        measured = f"{scaled(self._peaks['flops'], 'FLOP/s')} {self._peaks['from']}"
        return {**self._peaks, "flops": fastest, "from": f"the first the fastest kernel's, for {measured} was less"}

    @peaks.setter
    def peaks(self, peaks: dict | None) -> None:
        self._peaks = peaks

    @property
    def kernels(self) -> list[Kernel]:
        return [kernel for phase in self.phases for kernel in phase.kernels]

    @property
    def seconds(self) -> float:
        """In the plans of a step."""
        return sum(kernel.seconds for kernel in self.kernels)

    @property
    def timed(self) -> bool:
        """Whether every plan but the optimizer's, whose time is always known, was timed."""
        return any(kernel.seconds for kernel in self.kernels if kernel.phase != "optimizer") or (
            all(phase.name == "optimizer" for phase in self.phases) and self.seconds > 0
        )

    @property
    def compiled_seconds(self) -> float:
        return sum(kernel.seconds for kernel in self.kernels if kernel.kind != "extern")

    def roof(self, kernel: Kernel) -> float:
        """The share of what the machine can do that it reaches: of the least time that its FLOPs and bytes need; 0 if unknown."""
        if not self.peaks or not kernel.seconds:
            return 0.0
        return max(kernel.flops / self.peaks["flops"], kernel.bytes / self.peaks["bytes"]) / kernel.seconds

    def as_dict(self) -> dict:
        """For programs."""
        memory = self.explanation.memory
        return {
            "title": self.explanation.title, "timed": self.timed, "seconds": self.seconds, "peaks": self.peaks,
            "memory": None if memory is None else {**dataclasses.asdict(memory), "total": memory.total},
            "kernels": [{**dataclasses.asdict(k), "roof": self.roof(k)} for k in self.kernels],
        }  # fmt: skip


def _plans(compilations: list[records.Compilation]) -> list[tuple[str, Any]]:
    """(phase, executable) of a step."""
    models = [c for c in compilations if c.forward is not None]
    optimizers = [c for c in compilations if c.forward is None and c.optimizer is not None]
    timed = [c for c in models if any(_seconds(plan) for _, plan in _of(c))]
    chosen = (timed or models)[-1:]
    return [pair for c in [*chosen, *optimizers] for pair in _of(c)]


def _of(c: records.Compilation) -> list[tuple[str, Any]]:
    backward = [*c.retaining.values(), *c.backward.values()]
    pairs = [
        ("forward" if backward or c.fused else "step", c.forward),
        *([("backward and optimizer", c.fused)] if c.fused else [("backward", backward[-1])] if backward else []),
        ("optimizer", c.optimizer),
    ]
    return [(name, plan) for name, plan in pairs if plan is not None]


def _seconds(plan: Any) -> float:
    return sum(step.get("seconds", 0) for step in records.report_of(plan).get("steps", []))


def _phase(name: str, plan: Any) -> Phase:
    report = records.report_of(plan)
    inner = getattr(plan, "plan", plan)
    text = inner.text() if hasattr(inner, "text") else ""
    codes = {int(m["number"]): m["kernel"] for m in map(_STEP.match, text.splitlines()) if m}
    kernels = [
        Kernel(
            name, report["name"], i, step["name"], step["kind"], step.get("flops", 0), step.get("bytes", 0),
            list(dict.fromkeys(filter(None, step.get("origins", [])))), why_extern(step) if step["kind"] == "extern" else "",
            step.get("seconds", 0.0), code=codes.get(i, step["name"]),
        )
        for i, step in enumerate(report.get("steps", []))
        if step["kind"] not in BESIDE
    ]  # fmt: skip
    lines = {kernel.number: kernel.line for kernel in kernels}
    steps = len(report.get("steps", []))
    blocks = [_block(m, name, lines, steps) for m in map(_BUFFER.match, text.partition("steps:")[0].splitlines()) if m]
    return Phase(
        name, report["name"], text, kernels, blocks, report.get("temp_bytes", 0), report.get("saved_bytes", 0), bool(text)
    )


def _block(m: re.Match, phase: str, lines: dict[int, str], steps: int) -> Block:
    first, last = int(m["first"]), int(m["last"])
    if m["place"] == "saved":  # until the other plan is over with it, or since the other plan made it
        first, last = (first, steps - 1) if phase == "forward" else (0, last)
    arena = "temporary" if m["place"] == "temp" else "kept"
    return Block(arena, m["name"], m["type"], int(m["offset"]), int(m["bytes"]), first, last, lines.get(int(m["first"]), ""))


# ---- what files tell -------------------------------------------------------------------------------------------------


def source_of(origin: str) -> list[tuple[int, str, bool]]:
    """(number, text, whether it is the line itself) of the code around a line of the model; none where it cannot be read."""
    found = _LINE.match(origin)
    file = found and _file_of(found["file"])
    if not found or not file:
        return []
    here = int(found["line"])
    lines = [(n, linecache.getline(file, n).rstrip("\n")) for n in range(here - SOURCE_AROUND, here + SOURCE_AROUND + 1)]
    return [(n, text, n == here) for n, text in lines if n > 0 and (text or n == here)]


def _file_of(name: str) -> str:
    """Where the file of that name lies; "" where none is loaded, or several are. Origins may name a file without its folder."""
    if os.path.isfile(name):
        return name
    files = {getattr(module, "__file__", None) or "" for module in list(sys.modules.values())}
    known = [file for file in files if f"{os.sep}{file}".endswith(f"{os.sep}{name}") and os.path.isfile(file)]
    return known[0] if len(known) == 1 else ""


def dumps_of(kernel: Kernel) -> list[tuple[str, str]]:
    """(what, text) that TRAINC_DUMP=loop,asm wrote for a kernel."""
    return [(what, text) for what in ("loop", "asm", "s") for text in _dumped(f"{kernel.plan}.k*.{kernel.code}.{what}")]


def graphs_of(plan: str) -> list[tuple[str, str]]:
    """(file, text) of the graph before and after the passes, where TRAINC_DUMP=graph wrote them."""
    files = sorted(_dump_directory().glob(f"{_plain(plan)}.*.graph"))
    return [(file.name, file.read_text(errors="replace")) for file in ([files[0], files[-1]] if len(files) > 1 else files)]


def _dumped(pattern: str) -> list[str]:
    return [file.read_text(errors="replace") for file in sorted(_dump_directory().glob(_plain(pattern)))[:1]]


def _dump_directory() -> Path:
    return Path(os.environ.get("TRAINC_DUMP_DIR") or "trainc-dump")


def _plain(name: str) -> str:
    """As a dump's file is called."""
    return re.sub(r"[^\w.*-]", "_", name)
