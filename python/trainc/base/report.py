"""`trainc.explain`: what was compiled for a model, what runs in PyTorch and why, as text.

Everything told here was recorded when it was compiled (records.Compilation, Executable.report()); nothing is compiled again.
"""

from __future__ import annotations

import dataclasses
import html
from typing import Any

from trainc.base import records
from trainc.base.memory import Memory

KERNELS_SHOWN = 12
REASONS_SHOWN = 12
LINES_SHOWN = 3
LOOP = "trainc_started.while"  # src/support/while_operation.h
BESIDE = ("start", "wait")  # kinds of steps that compute nothing: what they begin and end runs beside the kernels

# What a remark says was not done (src/support/remark.h): a heading for it. What runs in PyTorch is told among the plan's calls.
REFUSED = {
    "fuse": "not fused",
    "matmul chain": "not fused into a matmul chain",
    "skip masked": "masked elements not passed over",
    "in place": "not written in place",
    "compile": "not compiled",
    "framework call": "no operator of PyTorch instead",
    "vendor product": "no product of the vendor's library instead",
    "chunk rows": "loss not made in chunks of rows",
}


@dataclasses.dataclass(frozen=True)
class Remark:
    """Something that was looked into and refused."""

    plan: str  # whose
    stage: str  # the folder of src whose code refused
    what: str  # a key of REFUSED
    reason: str
    detail: str  # what differs between those of one reason; often nothing
    origins: tuple[str, ...]  # lines of the model: of what was refused, then of what it was to go together with
    count: int  # so many refusals are equal in all of the above
    bytes: int  # of all of them: memory that it would have spared, or the traffic of


@dataclasses.dataclass
class Totals:
    """Work of one step: of the forward, of the backward that ran last, and of the optimizer's step."""

    flops: int = 0
    bytes: int = 0
    compiled_flops: int = 0
    compiled_bytes: int = 0
    kernels: int = 0
    externs: int = 0

    @property
    def flops_share(self) -> float:
        """Of the FLOP, how many are in compiled kernels, from 0 to 1."""
        return self.compiled_flops / self.flops if self.flops else 1.0

    @property
    def bytes_share(self) -> float:
        """Of the bytes that are read and written, how many are so by compiled kernels, from 0 to 1."""
        return self.compiled_bytes / self.bytes if self.bytes else 1.0


def totals(reports: list[dict]) -> Totals:
    sum_ = Totals()
    for step in (step for report in reports for step in report.get("steps", []) if step["kind"] not in BESIDE):
        flops, moved = step.get("flops", 0), step.get("bytes", 0)
        sum_.flops += flops
        sum_.bytes += moved
        if step["kind"] == "extern":
            sum_.externs += 1
        else:
            sum_.kernels += 1
            sum_.compiled_flops += flops
            sum_.compiled_bytes += moved
    return sum_


def plans_of_a_step(compilation: records.Compilation) -> list[Any]:
    """Forward, one backward (the last of the variants, which differ in the tangents that were there), optimizer."""
    backward = [*compilation.retaining.values(), *compilation.backward.values()]
    last = compilation.fused or (backward[-1] if backward else None)
    return [plan for plan in (compilation.forward, *compilation.parts, last, compilation.optimizer) if plan is not None]


class Explanation:
    """What `trainc.explain` returns: `str()` of it is the text; the figures are there for programs. `compilations`: a record of
    each signature (`route`: "compiled", "split", "dynamo" or "eager"; `reason`; `capture_seconds`, `compile_seconds`)."""

    def __init__(self, title: str, compilations: list[records.Compilation]):
        self.title = title
        self.compilations = compilations
        self.reports = [[records.report_of(plan) for plan in plans_of_a_step(c)] for c in compilations]

    @property
    def totals(self) -> Totals:
        """Of all that was compiled for the model, a step."""
        return totals([report for reports in self.reports for report in reports])

    @property
    def memory(self) -> Memory | None:
        """Bytes that a step of the signature compiled last needs at its peak; None where nothing compiled tells it."""
        return next(filter(None, (c.memory() for c in reversed(self.compilations))), None)

    @property
    def externs(self) -> list[tuple[str, str]]:
        """(operation, the user's line) of each call that PyTorch runs inside the plans."""
        steps = (step for reports in self.reports for report in reports for step in report.get("steps", []))
        return [(step["name"], _origins(step)) for step in steps if step["kind"] == "extern"]

    @property
    def remarks(self) -> list[Remark]:
        """What was looked into for the plans and refused, those of the most bytes first: why two kernels are not one, why a
        result is not written in place, why an operation runs in PyTorch, ..."""
        return sorted((r for reports in self.reports for r in remarks_of(reports)), key=lambda r: r.bytes, reverse=True)

    def __str__(self) -> str:
        if not self.compilations:
            return (
                f"{self.title}: nothing is compiled yet (a model is compiled by its first call, an optimizer by its first step)"
            )
        sections = [f"{self.title}: compiled for {count(len(self.compilations), 'signature')}"]
        sections += [_section(c, reports) for c, reports in zip(self.compilations, self.reports, strict=True)]
        return "\n\n".join(sections)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """In a notebook: each signature to unfold; the only one is."""
        if not self.compilations:
            return f"<p>{html.escape(str(self))}</p>"
        opened = " open" if len(self.compilations) == 1 else ""
        shown = f"<p><b>{html.escape(self.title)}</b>: compiled for {count(len(self.compilations), 'signature')}</p>"
        for compilation, reports in zip(self.compilations, self.reports, strict=True):
            signature, _, rest = _section(compilation, reports).partition("\n")
            shown += f"<details{opened}><summary>{html.escape(signature)}</summary><pre>{html.escape(rest)}</pre></details>"
        return shown


def written(explanation: Explanation, file: Any) -> Explanation:
    """The same, its text written to `file`: a path, something with `write`, or None."""
    if hasattr(file, "write"):
        file.write(f"{explanation}\n")
    elif file is not None:
        with open(file, "w", encoding="utf-8") as out:
            out.write(f"{explanation}\n")
    return explanation


# ---- the text ---------------------------------------------------------------------------------------------------------


def _section(compilation: records.Compilation, reports: list[dict]) -> str:
    lines = [compilation.signature or compilation.name]
    if compilation.recompiled:
        lines.append(f"  compiled again: {compilation.recompiled}")
    if compilation.verified is not None:
        lines.append(f"  {compilation.verified}")
    if compilation.route == "eager":
        return "\n".join([*lines, f"  runs in {compilation.framework}: {compilation.reason}"])
    if compilation.route == "split" and compilation.parts:
        lines.append(f"  compiled in {count(len(compilation.parts), 'part')}, around what runs in {compilation.framework}:")
        lines += [f"    {reason}" for reason in compilation.reason.split("; ")]
    elif compilation.route == "split":
        lines.append(f"  compiled in parts, each captured by Dynamo: {compilation.reason}")
    elif compilation.route == "dynamo":
        lines.append(f"  captured by Dynamo{': ' if compilation.reason else ''}{compilation.reason}")
    elif compilation.reason:
        lines.append(f"  {compilation.reason}")
    if not reports:
        return "\n".join(lines)
    if compilation.engine == "interpreter":
        return "\n".join([*lines, "  not compiled: its graph runs in PyTorch, operation by operation"])
    sum_ = totals(reports)
    lines.append(f"  {count(sum_.kernels, 'kernel')}, {count(sum_.externs, 'call')} of {compilation.framework}")
    if sum_.flops:
        flops, moved = scaled(sum_.flops, "FLOP"), scaled(sum_.bytes, "B")
        lines.append(f"  compiled: {sum_.flops_share:.1%} of {flops}, {sum_.bytes_share:.1%} of {moved}")
    lines += _memory(compilation.memory(), sum_)
    if compilation.unread:
        lines.append(f"  not computed unless it is read: {compilation.unread}")
    if compilation.deferred_bytes:
        when = "computed when first read" if compilation.deferred is None else "read, and computed then"
        lines.append(f"  deferred outputs: {scaled(compilation.deferred_bytes, 'B')}, {when}")
    seconds = f"capture {compilation.capture_seconds:.1f} s{_how(compilation)}, compile {compilation.compile_seconds:.1f} s"
    lines.append(f"  {seconds}{_passes(reports)}")
    for report in reports:
        lines += _plan(report)
    lines += _remarks(remarks_of(reports))
    return "\n".join(lines)


def _how(compilation: records.Compilation) -> str:
    """How the graph was had."""
    if compilation.trace_reason:
        return f" (every shape is traced on its own: {compilation.trace_reason})"
    return {"static": "", "symbolic": " (with symbols for its sizes)", "sizes": " (no trace: other sizes of an earlier one)"}[
        compilation.trace
    ]


def _plan(report: dict) -> list[str]:
    steps = report.get("steps", [])
    memory = [f"{scaled(report[key], 'B')} {what}" for key, what in _MEMORY if report.get(key)]
    cpu = f" ({report['cpu']})" if report.get("cpu") else ""
    lines = ["", f"  {report['name']}{cpu}: {', '.join(memory) or 'no memory of its own'}"]
    kernels = [step for step in steps if step["kind"] not in ("extern", *BESIDE)]
    largest = sorted(kernels, key=lambda step: (step.get("flops", 0), step.get("bytes", 0)), reverse=True)
    lines += [_row(step) for step in largest[:KERNELS_SHOWN]]
    if len(largest) > KERNELS_SHOWN:
        rest = totals([{"steps": largest[KERNELS_SHOWN:]}])
        lines.append(f"    and {rest.kernels} smaller ones: {scaled(rest.flops, 'FLOP')}, {scaled(rest.bytes, 'B')}")
    guarded = totals([{"steps": [step for step in kernels if step.get("guard")]}])
    if guarded.kernels:
        lines.append(f"    of these, {guarded.kernels} run where the step's data asks for them: {scaled(guarded.flops, 'FLOP')}")
    lines += _externs([step for step in steps if step["kind"] == "extern"])
    lines += _beside([step for step in steps if step["kind"] in BESIDE])
    lines += [f"    note: {note}" for note in report.get("notes", [])]
    return lines


def _memory(memory: Memory | None, sum_: Totals) -> list[str]:
    """The peak of a step, by what it is made of."""
    if memory is None:
        return []
    parts = [
        (memory.gradients, "gradients"), (memory.optimizer, "optimizer state"), (memory.saved, "kept for the backward"),
        (memory.temporary, "temporary"), (memory.results, "results"),
    ]  # fmt: skip
    made_of = ", ".join(f"{scaled(size, 'B')} {what}" for size, what in parts if size)
    there = f"the model's {scaled(memory.model, 'B')} and the batch's {scaled(memory.batch, 'B')}"
    lines = [f"  memory of a step: at most {scaled(memory.growth, 'B')} beside {there}: {made_of or 'nothing'}"]
    if memory.again_flops > 0:
        share = f" ({memory.again_flops / sum_.flops:.1%} of all)" if sum_.flops else ""
        lines.append(f"  computed again to meet memory=: {scaled(memory.again_flops, 'FLOP')}{share}")
    return lines


_MEMORY = [("saved_bytes", "kept for the backward"), ("temp_bytes", "temporary")]


def remarks_of(reports: list[dict]) -> list[Remark]:
    return [
        Remark(**{**remark, "plan": report["name"], "origins": tuple(remark["origins"])})
        for report in reports
        for remark in report.get("remarks", [])
    ]


def _remarks(remarks: list[Remark]) -> list[str]:
    """One line a reason, those of the most bytes first, with the lines of the model that it is of."""
    reasons: dict[tuple[str, str], list[Remark]] = {}
    for remark in sorted(remarks, key=lambda r: r.bytes, reverse=True):
        if remark.what != "compile":
            reasons.setdefault((remark.what, remark.reason), []).append(remark)
    heaviest = sorted(reasons.items(), key=lambda reason: sum(r.bytes for r in reason[1]), reverse=True)
    lines = ["", "  refused (remarks has all):"] if heaviest else []
    for (what, reason), same in heaviest[:REASONS_SHOWN]:
        total = f"{sum(r.count for r in same):>6} x {scaled(sum(r.bytes for r in same), 'B'):>8}"
        lines.append(f"  {total}  {REFUSED.get(what, what)}: {reason}")
        where = list(dict.fromkeys(" <- ".join(r.origins) + (f": {r.detail}" if r.detail else "") for r in same if r.origins))
        lines += [f"                     {line}" for line in where[:LINES_SHOWN]]
        if len(where) > LINES_SHOWN:
            lines.append(f"                     and {len(where) - LINES_SHOWN} more")
    if len(heaviest) > REASONS_SHOWN:
        lines.append(f"    and {count(len(heaviest) - REASONS_SHOWN, 'reason')} of fewer bytes")
    return lines


def _externs(steps: list[dict]) -> list[str]:
    """One line an operation."""
    calls: dict[str, list[dict]] = {}
    for step in steps:
        calls.setdefault(step["name"], []).append(step)
    lines = ["    run by PyTorch:"] if calls else []
    for name, same in calls.items():
        origins = _origins({"origins": [origin for step in same for origin in step.get("origins", [])]})
        times = f"{len(same)} x " if len(same) > 1 else ""
        lines.append(f"      {times + name:<40} {origins}  {why_extern(same[0])}")
    return lines


def _beside(steps: list[dict]) -> list[str]:
    """Loops of plans of their own, and what is begun beside the kernels, with the time for which they had to wait for it, where
    it was measured."""
    started = [step for step in steps if step["kind"] == "start"]
    loops = [step for step in started if step["operation"] == LOOP]
    lines = [line for step in loops for line in _loop(step)]
    started = [step for step in started if step["operation"] != LOOP]
    if not started:
        return lines
    names = ", ".join(dict.fromkeys(step["operation"] for step in started))
    waited = sum(step.get("seconds", 0) for step in steps if step["kind"] == "wait")
    for_it = f", waited for {waited * 1e3:.2f} ms" if waited else ""
    return [*lines, f"    beside the kernels: {len(started)} x {names}{for_it}"]


def _loop(step: dict) -> list[str]:
    """It, and below it what runs in each trip."""
    starts, trips = step.get("starts", 0), step.get("trips", 0)
    told = f", {count(trips, 'trip')} in {count(starts, 'run')} so far" if starts else ""
    body = step.get("body", [])
    rows = [_row(inner) for inner in body if inner["kind"] == "kernel"]
    rows += [line for inner in body if inner.get("operation") == LOOP for line in _loop(inner)]
    return [f"    a loop, until its data ends it: {_origins(step)}{told}", *(f"  {row}" for row in rows)]


def _row(step: dict) -> str:
    seconds = f" {step['seconds'] * 1e3:8.2f} ms" if step.get("seconds") else ""
    work = f"{scaled(step.get('flops', 0), 'FLOP'):>12} {scaled(step.get('bytes', 0), 'B'):>10}"
    return f"    {step['name'][:40]:<40} {work}{seconds}  {_origins(step)}"


def _origins(step: dict) -> str:
    origins = [origin for origin in dict.fromkeys(step.get("origins", [])) if origin]
    return ", ".join(origins[:3]) + (f" and {len(origins) - 3} more" if len(origins) > 3 else "")


def why_extern(step: dict) -> str:
    if step["name"].startswith("framework."):
        return 'measured to be faster than a kernel (tune="max")'
    return step.get("reason", "")


def _passes(reports: list[dict]) -> str:
    """Where compile time went, plan by plan."""
    told = []
    for report in reports:
        made = report.get("compile") or {}
        if report.get("from_cache"):
            told.append(f"from the cache{_instead_of(made)}")
        elif made.get("seconds"):
            told.append(f"{made['seconds']:.1f} s{_stages(made)}")
    return f" ({'; '.join(told)})" if told else ""


def _instead_of(made: dict) -> str:
    return f" instead of {made['seconds']:.1f} s" if made.get("seconds") else ""


def _stages(made: dict) -> str:
    if "code_seconds" not in made:
        return ""
    passes = sum(record["seconds"] for record in made["passes"])
    kernels = f"{made['distinct_kernels']} of {made['kernels']} kernels"
    return f": passes {passes:.2f}, schedule {made['schedule_seconds']:.2f}, code of {kernels} {made['code_seconds']:.2f}"


def count(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def scaled(value: float, unit: str) -> str:
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= 0.9995 * factor:  # what three digits round to the factor
            return f"{value / factor:.3g} {prefix}{unit}"
    return f"{value:.0f} {unit}"
