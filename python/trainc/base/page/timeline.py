"""The timeline of a step: a band of its plans, below it a lane a thread with what that ran."""

from __future__ import annotations

import dataclasses
import itertools
from html import escape

from trainc.base.page.figures import Figures
from trainc.base.page.marks import WIDE, box, colour, legend, row_id, seconds_text, shapes, steps_of, told

TALL = 20
LANES = 16  # threads shown
NARROW = 0.8  # units; kernels below it that follow each other are one mark: so a lane has so many marks at most
LONGEST_GAP = 0.06  # of the plans' time: a gap beyond it is cut


@dataclasses.dataclass
class Mark:
    start: float  # units
    wide: float
    kind: str
    title: str
    row: str
    seconds: float


class Scale:
    """Where a time lies across the picture: gaps between plans that are long are cut."""

    def __init__(self, figures: Figures):
        timed = [phase for phase in figures.phases if phase.seconds]
        most = LONGEST_GAP * figures.seconds
        self.pieces: list[tuple[float, float, float]] = []  # (from, until, units drawn before), in seconds that are drawn
        self.gaps: list[tuple[float, float, float, bool]] = []  # (from, until, seconds, whether it is cut), drawn
        drawn, before = 0.0, None
        for phase in timed:
            if before is not None and phase.start > before:
                gap = min(phase.start - before, most)
                self.gaps.append((drawn, drawn + gap, phase.start - before, phase.start - before > most))
                drawn += gap
            self.pieces.append((phase.start, phase.end, drawn))
            drawn, before = drawn + phase.end - phase.start, phase.end
        self.drawn = drawn or 1.0

    def at(self, time: float) -> float:
        """In units; a time within a gap is at its end."""
        for start, end, before in self.pieces:
            if time <= end:
                return (before + max(0.0, time - start)) / self.drawn * WIDE
        return float(WIDE)


def timeline(figures: Figures) -> str:
    if not figures.seconds:
        return ""
    scale = Scale(figures)
    band = "".join(
        f'<span style="left:{scale.at(p.start) / WIDE:.2%};width:{(scale.at(p.end) - scale.at(p.start)) / WIDE:.2%}" '
        f'title="{escape(p.name)}: {seconds_text(p.seconds)} in {len(p.kernels)} kernels and calls">'
        f"{escape(p.name)} <b>{seconds_text(p.seconds)}</b></span>"
        for p in figures.phases
        if p.seconds
    )
    band += "".join(
        f'<span class="gap{" cut" if cut else ""}" style="left:{a / scale.drawn:.2%};width:{(b - a) / scale.drawn:.2%}" '
        f'title="between two plans: {seconds_text(gap)} in Python and PyTorch{" (not to scale)" if cut else ""}">'
        f"{f'+{seconds_text(gap)}' if cut else ''}</span>"
        for a, b, gap, cut in scale.gaps
    )
    threads = figures.threads
    lanes = "".join(
        f"<small>thread {i + 1}</small>{shapes(TALL, _lane(figures, thread, scale), f'thread {i + 1}', 'marks')}"
        for i, thread in enumerate(threads[:LANES])
    )
    lanes += _beside(figures, scale)
    more = f"<p class=soft>{len(threads) - LANES} more threads ran kernels, too.</p>" if len(threads) > LANES else ""
    axis = "".join(
        f'<span style="left:{scale.at(t) / WIDE:.2%}">{seconds_text(t) if t else "0"}</span>'
        for t in steps_of(max(p.end for p in figures.phases))
        if any(start <= t <= end for start, end, _ in scale.pieces)
    )
    shares: dict[str, float] = {}
    for k in figures.kernels:
        shares[k.line] = shares.get(k.line, 0.0) + k.seconds / figures.seconds
    lanes = f"<small></small><div class=band>{band}</div>{lanes}<small></small><div class=axis>{axis}</div>"
    return f"<figure><div class=wide><div class=lanes>{lanes}</div></div>{more}{legend(figures, shares)}</figure>"


def _beside(figures: Figures, scale: Scale) -> str:
    """A lane of what ran beside the kernels, where there was any; of those that overlap each a row."""
    rows: list[float] = []  # when the last of each row is over
    boxes = []
    for flight in sorted((f for phase in figures.phases for f in phase.beside), key=lambda f: f.start):
        end = flight.start + flight.seconds
        row = next((i for i, until in enumerate(rows) if until <= flight.start), len(rows))
        rows[row : row + 1] = [end]
        title = (
            f"{flight.name} ({flight.operation})\n{seconds_text(flight.seconds)} beside the kernels, "
            f"{seconds_text(flight.waited)} of them waited for"
        )
        x = scale.at(flight.start)
        boxes.append((row, x, scale.at(end) - x, "\n".join([title, *flight.origins[:1]])))
    if not boxes:
        return ""
    tall = TALL / len(rows)
    drawn = "".join(box(x, row * tall, wide, tall, "c0", title) for row, x, wide, title in boxes)
    return f"<small>network</small>{shapes(TALL, drawn, 'network', 'marks')}"


def _lane(figures: Figures, thread: int, scale: Scale) -> str:
    marks = []
    for k in figures.kernels:
        ran = [part for part in k.parts if part.thread == thread]
        if ran:
            start, end = min(part.start for part in ran), max(part.start + part.seconds for part in ran)
        elif k.seconds and not k.parts and k.thread == thread:
            start, end = k.start, k.start + k.seconds
        else:
            continue
        x = scale.at(start)
        title = told(k, figures) + (f"\nthis thread: {seconds_text(end - start)}" if k.parts else "")
        marks.append(Mark(x, scale.at(end) - x, colour(k.line, figures), title, row_id(k, figures), end - start))
    return "".join(box(m.start, 0, m.wide, TALL, m.kind, m.title, m.row) for m in _merged(marks))


def _merged(marks: list[Mark]) -> list[Mark]:
    """Narrow marks that follow each other as one."""
    merged: list[Mark] = []
    for wide, group in itertools.groupby(sorted(marks, key=lambda m: m.start), key=lambda m: m.wide >= NARROW):
        if wide:
            merged += group
            continue
        few: list[Mark] = []
        for mark in group:
            if few and mark.start + mark.wide - few[0].start > 2 * NARROW:  # an idle stretch lies between
                merged.append(_one(few))
                few = []
            few.append(mark)
        merged += [_one(few)] if few else []
    return merged


def _one(few: list[Mark]) -> Mark:
    if len(few) == 1:
        return few[0]
    kinds = {mark.kind for mark in few}
    longest = max(few, key=lambda mark: mark.seconds)
    title = f"{len(few)} short kernels, {seconds_text(sum(mark.seconds for mark in few))}; the longest:\n{longest.title}"
    last = few[-1]
    return Mark(
        few[0].start, last.start + last.wide - few[0].start, longest.kind if len(kinds) == 1 else "c0", title, longest.row,
        sum(mark.seconds for mark in few),
    )  # fmt: skip


__all__ = ["timeline"]
