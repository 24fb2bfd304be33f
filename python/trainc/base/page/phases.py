"""The plans of a step, read from their reports and from how their memory is laid out."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

from trainc.base import records
from trainc.base.report import BESIDE, why_extern

_OPERATION = re.compile(r" \([^()]*\)$")  # "model.py:41 (aten.addmm)"


@dataclasses.dataclass
class Part:
    """What one thread ran of a kernel."""

    thread: int  # the system's number
    start: float
    seconds: float


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
    start: float = 0.0  # seconds after the first kernel of the step began
    thread: int = 0  # that called it
    parts: list[Part] = dataclasses.field(default_factory=list)
    code: str = ""  # by which its dumps are called

    @property
    def line(self) -> str:
        return line_of(self.origins)

    def idle(self) -> float:
        """The share of its time in which no thread ran a part of it: threads were woken, or waited for each other."""
        busy, end = 0.0, 0.0
        for part in sorted(self.parts, key=lambda part: part.start):
            busy += max(0.0, part.start + part.seconds - max(part.start, end))
            end = max(end, part.start + part.seconds)
        return 1 - busy / self.seconds if self.parts and self.seconds else 0.0


@dataclasses.dataclass
class Beside:
    """What a step of the plan began, and the plan waited for later: a collective. It ran beside the kernels."""

    name: str
    operation: str
    start: float  # as a kernel's
    seconds: float  # until it was over
    waited: float  # of these, those in which the plan had nothing else to do
    origins: list[str]


@dataclasses.dataclass
class Block:
    """Memory that a plan uses, for steps `first` to `last`."""

    arena: str  # "saved" (from forward to backward), "saved, no slot" (room of it that is free) or "temporary"
    name: str
    type: str
    offset: int
    bytes: int
    first: int
    last: int
    line: str  # that writes it; where no plan of the step does, that reads it first
    written: bool = True  # by this plan
    over: str = ""  # the buffer in whose memory it is written

    @property
    def space(self) -> str:
        return "temporary" if self.arena == "temporary" else "saved"

    def lives_at(self, step: int) -> bool:
        return self.first <= step <= self.last


@dataclasses.dataclass
class Phase:
    """One plan of the step."""

    name: str
    plan: str
    text: str  # the plan's own; "" where it has none
    graph: Any  # step_graph.GraphText, or None
    kernels: list[Kernel]
    blocks: list[Block]
    temporary: int
    kept: int
    steps: int
    beside: list[Beside] = dataclasses.field(default_factory=list)

    @property
    def seconds(self) -> float:
        return sum(kernel.seconds for kernel in self.kernels)

    @property
    def start(self) -> float:
        return min((k.start for k in self.kernels if k.seconds), default=0.0)

    @property
    def end(self) -> float:
        return max((k.start + k.seconds for k in self.kernels if k.seconds), default=0.0)

    def move(self, by: float) -> None:
        for kernel in self.kernels:
            kernel.start += by
            for part in kernel.parts:
                part.start += by
        for flight in self.beside:
            flight.start += by

    def peak(self) -> tuple[int, int]:
        """(the first step at which most bytes are in use, so many); memory in which several lie counts once."""
        most = (0, 0)
        for step in range(self.steps):
            used, end = 0, {"saved": 0, "temporary": 0}
            for arena, low, high in sorted((b.space, b.offset, b.offset + b.bytes) for b in self.blocks if b.lives_at(step)):
                used += max(0, high - max(low, end[arena]))
                end[arena] = max(end[arena], high)
            most = (step, used) if used > most[1] else most
        return most


def line_of(origins: list[str]) -> str:
    """The first line of the model, without the operation."""
    return _OPERATION.sub("", origins[0]) if origins else ""


def phases_of(compilations: list[records.Compilation]) -> list[Phase]:
    """Those of one step."""
    models = [c for c in compilations if c.forward is not None or c.parts]
    optimizers = [c for c in compilations if c.forward is None and not c.parts and c.optimizer is not None]
    timed = [c for c in models if any(_seconds(plan) for _, plan in _plans(c))]
    last = max(timed, key=lambda c: max(_start(plan) for _, plan in _plans(c)), default=None)
    chosen = [last] if last is not None else models[-1:]
    found = [_phase(name, plan) for c in [*chosen, *optimizers] for name, plan in _plans(c)]
    _name_makers(found)
    return _distinct(found)


def _plans(c: records.Compilation) -> list[tuple[str, Any]]:
    backward = _latest([*c.retaining.values(), *c.backward.values()])
    pairs = [
        ("step" if c.whole else "forward", c.forward),
        *((f"part {k}", plan) for k, plan in enumerate(c.parts, 1)),
        ("backward and optimizer", c.fused) if c.fused is not None else ("backward", backward),
        ("optimizer", c.optimizer),
    ]
    return [(name, plan) for name, plan in pairs if plan is not None]


def _latest(variants: list[Any]) -> Any:
    """The backward that ran last with timing on, else the one compiled last."""
    return max(variants, key=_start, default=None) if any(map(_seconds, variants)) else (variants or [None])[-1]


def _steps(plan: Any) -> list[dict]:
    return records.report_of(plan).get("steps", [])


def _seconds(plan: Any) -> float:
    return sum(step.get("seconds", 0) for step in _steps(plan))


def _start(plan: Any) -> float:
    return max((step["time"]["start"] for step in _steps(plan) if "time" in step), default=0.0)


def _distinct(phases: list[Phase]) -> list[Phase]:
    """Of several optimizers, or several variants of one, each has a name of its own."""
    names: dict[str, int] = {}
    for phase in phases:
        names[phase.name] = names.get(phase.name, 0) + 1
        if names[phase.name] > 1:
            phase.name = f"{phase.name} {names[phase.name]}"
            for kernel in phase.kernels:
                kernel.phase = phase.name
    return phases


def _phase(name: str, plan: Any) -> Phase:
    report = records.report_of(plan)
    steps, kernels, clock = report.get("steps", []), [], 0.0
    for i, step in enumerate(steps):
        if step["kind"] in BESIDE:
            continue
        seconds = step.get("seconds", 0.0)
        time = step.get("time") or {"start": clock, "thread": 0, "parts": []}
        kernels.append(Kernel(
            name, report["name"], i, step["name"], step["kind"], step.get("flops", 0), step.get("bytes", 0),
            _origins(step), why_extern(step) if step["kind"] == "extern" else "",
            seconds, time["start"], time["thread"], [Part(*part) for part in time["parts"]], step.get("code", ""),
        ))  # fmt: skip
        clock += seconds
    inner = getattr(plan, "plan", None)
    layout = json.loads(inner.layout()) if inner is not None else {"buffers": []}
    return Phase(
        name, report["name"], inner.text() if inner is not None else "", getattr(plan, "graph", None), kernels,
        [_block(buffer, len(steps)) for buffer in layout["buffers"]], report.get("temp_bytes", 0), report.get("saved_bytes", 0),
        len(steps), _beside(steps),
    )  # fmt: skip


def _origins(step: dict) -> list[str]:
    return list(dict.fromkeys(filter(None, step.get("origins", []))))


def _beside(steps: list[dict]) -> list[Beside]:
    """Of the last timed run."""
    waits = {step["token"]: step for step in steps if step["kind"] == "wait"}
    found = []
    for step in steps:
        if step["kind"] != "start" or "over" not in step.get("time", {}):
            continue
        start, over = step["time"]["start"], step["time"]["over"]
        waited = max(0.0, over - waits[step["token"]]["time"]["start"])
        found.append(Beside(step["name"], step["operation"], start, over - start, waited, _origins(step)))
    return found


def _block(b: dict, steps: int) -> Block:
    last = min(b["last"], steps - 1)  # one that outlasts the plan ends a step behind it
    return Block(
        b["arena"], b["name"], b["type"], b["offset"], b["bytes"], b["first"], last, line_of(b["origins"]), b["written"],
        b.get("over", ""),
    )  # fmt: skip


def _name_makers(phases: list[Phase]) -> None:
    """What the backward finds in the handle's arena is of the lines that the forward wrote it for."""
    made = {b.offset: b.line for p in phases if p.name == "forward" for b in p.blocks if b.arena == "saved" and b.written}
    for block in (b for p in phases for b in p.blocks if b.arena == "saved" and not b.written):
        block.line = made.get(block.offset, block.line)


__all__ = ["Beside", "Block", "Kernel", "Part", "Phase", "line_of", "phases_of"]
