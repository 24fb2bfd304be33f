"""The roofline: FLOP/s over FLOPs a byte, both by powers of ten, with the machine's two peaks."""

from __future__ import annotations

import math
from html import escape

from trainc.base.page.figures import Figures
from trainc.base.page.marks import WIDE, colour, row_id, shapes, told
from trainc.base.report import scaled

TALL = 500
LARGEST = 26  # pixels across the dot of the kernel that takes longest


def roofline(figures: Figures) -> str:
    """One dot a kernel; "" where nothing is timed or no peak is known."""
    dots = [k for k in figures.kernels if k.seconds and k.flops and k.bytes]
    if not dots or not figures.peaks:
        return ""
    flops, moved = figures.peaks["flops"], figures.peaks["bytes"]
    xs = [math.log10(k.flops / k.bytes) for k in dots]
    ys = [math.log10(k.flops / k.seconds) for k in dots]
    top, ridge = math.log10(flops), math.log10(flops / moved)
    x0, x1 = math.floor(min(*xs, ridge - 1)), math.ceil(max(*xs, ridge + 1))
    y0, y1 = math.floor(min(*ys, top - 2)), math.ceil(max(*ys, top) + 0.05)

    def at_x(value: float) -> float:
        return (value - x0) / (x1 - x0)

    def at_y(value: float) -> float:
        return (y1 - value) / (y1 - y0)

    lines = "".join(f'<path class=grid d="M{at_x(p) * WIDE:.1f} 0V{TALL}"/>' for p in range(x0, x1 + 1))
    lines += "".join(f'<path class=grid d="M0 {at_y(p) * TALL:.1f}H{WIDE}"/>' for p in range(y0, y1 + 1))
    start = max(x0, y0 - math.log10(moved))
    corners = [(start, start + math.log10(moved)), (ridge, top), (x1, top)]
    lines += '<path class=roof d="M' + "L".join(f"{at_x(a) * WIDE:.1f} {at_y(b) * TALL:.1f}" for a, b in corners) + '"/>'
    words = "".join(f'<span class=x style="left:{at_x(p):.2%}">{_power(p)}</span>' for p in range(x0, x1 + 1))
    words += "".join(f'<span class=y style="top:{at_y(p):.2%}">{_rate(p)}</span>' for p in range(y0, y1 + 1))
    words += f'<span class=top style="top:{at_y(top):.2%}">{scaled(flops, "FLOP/s")}</span>'
    middle = (max(start, x0) + ridge) / 2
    slope = f"left:{at_x(middle):.2%};top:{at_y(middle + math.log10(moved)):.2%}"
    words += f'<span class=slope style="{slope}">{scaled(moved, "B/s")}</span>'
    longest = max(k.seconds for k in dots)
    marks = []
    for k, a, b in sorted(zip(dots, xs, ys, strict=True), key=lambda dot: -dot[0].seconds):
        size = 5 + (LARGEST - 5) * math.sqrt(k.seconds / longest)
        place = f"left:{at_x(a):.2%};top:{at_y(b):.2%};width:{size:.1f}px"
        leads = f'data-row={row_id(k, figures)} title="{escape(told(k, figures))}"'
        marks.append(f'<i class="dot {colour(k.line, figures)}" style="{place}" {leads}></i>')
    plot = f"<div class=plot>{shapes(TALL, lines, 'roofline')}{words}<div class=marks>{''.join(marks)}</div></div>"
    return f"<figure class=roofline>{plot}<figcaption>across: FLOPs a byte of memory; up: FLOP/s</figcaption></figure>"


def _power(p: int) -> str:
    return f"{10.0**p:g}" if -3 < p < 5 else f"1e{p}"


def _rate(p: int) -> str:
    return scaled(10.0**p, "FLOP/s").removesuffix("FLOP/s").strip()


__all__ = ["roofline"]
