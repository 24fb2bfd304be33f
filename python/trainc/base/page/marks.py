"""What the pictures of a report have in common: colours, labels, marks. A picture is shapes that stretch to the page's width
(SVG) with words beside them that do not (HTML). Each mark has a title, which a browser shows without a script."""

from __future__ import annotations

import math
from html import escape

from trainc.base.page.figures import Figures
from trainc.base.page.phases import Kernel
from trainc.base.report import scaled

WIDE = 1000  # units of a picture's width


def colour(line: str, figures: Figures) -> str:
    """A class of style.css: the same for the same line of the model in all pictures."""
    return f"c{figures.lines.index(line) + 1}" if line in figures.lines else "c0"


def legend(figures: Figures, shares: dict[str, float]) -> str:
    """Which colour is which line. `shares`: of each line."""
    items = [(colour(line, figures), line, shares.get(line, 0.0)) for line in figures.lines]
    rest = sum(share for line, share in shares.items() if line not in figures.lines)
    items = [*items, ("c0", "other lines", rest)]
    shown = [
        f"<li><i class={kind}></i><span>{escape(line)}</span> <b>{percent(share)}</b></li>"
        for kind, line, share in items
        if share >= 0.0005  # what is 0.1% at least
    ]
    return f"<ul class=legend>{''.join(shown)}</ul>"


def percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.1 else f"{share:.1%}"


def seconds_text(seconds: float) -> str:
    if seconds >= 0.9995:
        return f"{seconds:.3g} s" if seconds < 999.5 else f"{seconds:.0f} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 0.9995e-3 else f"{seconds * 1e6:.3g} µs"


def told(kernel: Kernel, figures: Figures) -> str:
    """What hovering over a kernel tells."""
    rows = [kernel.name, kernel.line, f"{kernel.phase}, step {kernel.number}"]
    if kernel.seconds:
        idle = kernel.idle()
        rows.append(seconds_text(kernel.seconds) + (f", {percent(idle)} of it without a thread at work" if idle >= 0.1 else ""))
    rows.append(f"{scaled(kernel.flops, 'FLOP')}, {scaled(kernel.bytes, 'B')}")
    if share := figures.roof(kernel):
        rows.append(f"{share:.0%} of the roof" if share <= 3 else "more than 300% of the roof")
    return "\n".join(row for row in rows if row)


def row_id(kernel: Kernel, figures: Figures) -> str:
    """Of a kernel's row in the table, to which its marks lead."""
    return f"k{[phase.name for phase in figures.phases].index(kernel.phase)}-{kernel.number}"


def box(x: float, y: float, wide: float, tall: float, kind: str, title: str, row: str = "") -> str:
    leads = f" data-row={row}" if row else ""
    return (
        f'<rect class={kind} x="{x:.2f}" y="{y:.2f}" width="{max(wide, 0.15):.2f}" height="{max(tall, 0.15):.2f}"{leads}>'
        f"<title>{escape(title)}</title></rect>"
    )


def shapes(tall: float, inside: str, name: str, kind: str = "") -> str:
    return (
        f'<svg class="{kind}" viewBox="0 0 {WIDE} {tall:g}" preserveAspectRatio="none" role="group" '
        f'aria-label="{escape(name)}">{inside}</svg>'
    )


def steps_of(most: float, about: int = 5) -> list[float]:
    """Round numbers from 0 to `most`, for an axis."""
    if most <= 0:
        return [0.0]
    size = 10.0 ** math.floor(math.log10(most / about))
    step = next(size * m for m in (1, 2, 5, 10) if most / (size * m) <= about)
    return [step * i for i in range(int(most / step + 1e-9) + 1)]


__all__ = ["WIDE", "box", "colour", "legend", "percent", "row_id", "seconds_text", "shapes", "steps_of", "told"]
