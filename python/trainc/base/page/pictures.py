"""Pictures of a report: SVG with a title for each mark, which a browser shows without a script."""

from __future__ import annotations

import math
import zlib
from html import escape

from trainc.base.page.figures import Figures, Kernel, Phase
from trainc.base.report import scaled

HUES = (210, 265, 170, 30, 340, 90, 300, 50)


def colour(line: str) -> str:
    """The same for the same line of the model."""
    return f"hsl({HUES[zlib.crc32(line.encode()) % len(HUES)]} 45% 55%)" if line else "var(--dim)"


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"


def told(kernel: Kernel, figures: Figures) -> str:
    """What hovering over a kernel tells."""
    rows = [kernel.name, kernel.line, f"{kernel.phase}, step {kernel.number}"]
    if kernel.seconds:
        rows.append(milliseconds(kernel.seconds))
    rows.append(f"{scaled(kernel.flops, 'FLOP')}, {scaled(kernel.bytes, 'B')}")
    if share := figures.roof(kernel):
        rows.append(f"{share:.0%} of the roof")
    return "\n".join(row for row in rows if row)


def roofline(figures: Figures) -> str:
    """FLOP/s over FLOPs a byte, both by powers of ten, with the machine's two peaks."""
    dots = [k for k in figures.kernels if k.seconds and k.flops and k.bytes]
    if not dots or not figures.peaks:
        return ""
    width, height, left, bottom = 900, 420, 90, 50
    flops, moved = figures.peaks["flops"], figures.peaks["bytes"]
    ridge = flops / moved
    x = [math.log10(k.flops / k.bytes) for k in dots]
    y = [math.log10(k.flops / k.seconds) for k in dots]
    x0, x1 = math.floor(min(*x, math.log10(ridge) - 1)), math.ceil(max(*x, math.log10(ridge) + 1))
    top = math.log10(max(flops, 10 ** max(y)))
    y0, y1 = math.floor(min(*y, top - 2)), math.ceil(top)

    def at_x(value: float) -> float:
        return left + (value - x0) / (x1 - x0) * (width - left - 20)

    def at_y(value: float) -> float:
        return 15 + (y1 - value) / (y1 - y0) * (height - bottom - 15)

    out = [f'<div class="wide"><svg class="plot" viewBox="0 0 {width} {height}" role="group" aria-label="roofline">']
    for p in range(x0, x1 + 1):
        out.append(f'<path class="grid" d="M{at_x(p):.1f} 15V{height - bottom}"/>')
        out.append(f'<text x="{at_x(p):.1f}" y="{height - bottom + 20}" text-anchor="middle">{10.0**p:g}</text>')
    for p in range(y0, y1 + 1):
        out.append(f'<path class="grid" d="M{left} {at_y(p):.1f}H{width - 20}"/>')
        out.append(f'<text x="{left - 8}" y="{at_y(p) + 4:.1f}" text-anchor="end">{scaled(10.0**p, "")}</text>')
    out.append(f'<text x="{left}" y="{height - 8}">FLOPs a byte</text><text x="{left + 6}" y="11">FLOP/s</text>')
    start = max(x0, y0 - math.log10(moved))
    corners = [(start, start + math.log10(moved)), (math.log10(ridge), math.log10(flops)), (x1, math.log10(flops))]
    out.append('<path class="roof" d="M' + "L".join(f"{at_x(a):.1f} {at_y(b):.1f}" for a, b in corners) + '"/>')
    out.append(f'<text x="{width - 24}" y="{at_y(math.log10(flops)) - 6:.1f}" text-anchor="end">{scaled(flops, "FLOP/s")}</text>')
    longest = max(k.seconds for k in dots)
    for k, a, b in sorted(zip(dots, x, y, strict=True), key=lambda dot: -dot[0].seconds):
        r = 3 + 11 * math.sqrt(k.seconds / longest)
        out.append(
            f'<circle class="dot" tabindex="0" role="img" cx="{at_x(a):.1f}" cy="{at_y(b):.1f}" r="{r:.1f}">'
            f"<title>{escape(told(k, figures))}</title></circle>"
        )
    return "".join([*out, "</svg></div>"])


def timeline(figures: Figures) -> str:
    """Kernels in order; one lane a plan, for they run one after another, each on all threads."""
    if not figures.seconds:
        return ""
    width, left, lane = 1400, 0, 46
    phases = [p for p in figures.phases if any(k.seconds for k in p.kernels)]
    box = f'viewBox="0 0 {width} {lane * len(phases) + 24}" role="group" aria-label="timeline"'
    out = [f'<div class="wide"><svg class="long" {box}>']
    for row, phase in enumerate(phases):
        y, spent = row * lane, sum(k.seconds for k in phase.kernels)
        out.append(f'<text x="{left}" y="{y + 13}">{escape(phase.name)}, {milliseconds(spent)}</text>')
        for k in phase.kernels:
            if k.seconds:
                x, wide = k.start / figures.seconds * width, max(0.4, k.seconds / figures.seconds * width)
                out.append(
                    f'<rect class="block" tabindex="0" role="img" x="{x:.2f}" y="{y + 19}" width="{wide:.2f}" height="20" '
                    f'style="fill:{colour(k.line)}"><title>{escape(told(k, figures))}</title></rect>'
                )
    y = lane * len(phases) + 18
    out.append(f'<text x="0" y="{y}">0</text><text x="{width}" y="{y}" text-anchor="end">{milliseconds(figures.seconds)}</text>')
    return "".join([*out, "</svg></div>"])


def memory(phase: Phase) -> str:
    """A plan's two arenas, one above the other: offset over steps."""
    if not phase.blocks:
        return ""
    width, height = 1400, 300
    kept = max([phase.kept, *(b.offset + b.bytes for b in phase.blocks if b.arena == "kept")])
    high = max(1, kept + max([phase.temporary, *(b.offset + b.bytes for b in phase.blocks if b.arena == "temporary")]))
    steps = max(1, *(b.last + 1 for b in phase.blocks))
    used = [0] * (steps + 1)
    box = f'viewBox="0 0 {width} {height + 22}" role="group" aria-label="memory of {escape(phase.name)}"'
    out = [f'<div class="wide"><svg class="long" {box}>']
    for b in sorted(phase.blocks, key=lambda b: -b.bytes):
        if b.last < b.first or not b.bytes:
            continue
        base = b.offset + (kept if b.arena == "temporary" else 0)
        x, wide = b.first / steps * width, (b.last + 1 - b.first) / steps * width
        tall = b.bytes / high * height
        used[b.first] += b.bytes
        used[b.last + 1] -= b.bytes
        words = f"{b.name}: {b.type}, {scaled(b.bytes, 'B')}\n{b.line}\n{b.arena} at {b.offset}, steps {b.first} to {b.last}"
        top = height - (base + b.bytes) / high * height
        out.append(
            f'<rect class="block" tabindex="{0 if tall > 1 else -1}" role="img" x="{x:.1f}" y="{top:.2f}" '
            f'width="{wide:.1f}" height="{tall:.2f}" style="fill:{colour(b.line)}"><title>{escape(words)}</title></rect>'
        )
    at, now, most = 0, 0, 0
    for step, change in enumerate(used):
        now += change
        if now > most:
            at, most = step, now
    x = (at + 0.5) / steps * width
    side = "end" if x > width / 2 else "start"
    out.append(f'<path class="peak" d="M{x:.1f} 0V{height}"/>')
    out.append(f'<text x="{x:.1f}" y="{height + 17}" text-anchor="{side}">most in use: step {at}</text></svg></div>')
    return "".join(out)
