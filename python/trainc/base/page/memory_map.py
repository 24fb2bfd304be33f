"""What a plan's memory holds when: place over steps, what is kept for the backward below, temporaries above."""

from __future__ import annotations

from html import escape

from trainc.base.page.figures import Figures
from trainc.base.page.marks import WIDE, box, colour, legend, shapes, steps_of
from trainc.base.page.phases import Phase
from trainc.base.report import scaled

TALL = 300
LOWEST = 0.4  # units; what is lower is not drawn


def memory_map(phase: Phase, figures: Figures) -> str:
    blocks = [b for b in phase.blocks if b.bytes and b.last >= b.first]
    if not blocks:
        return ""
    high = max(1, phase.kept + phase.temporary)
    out, small = [], 0
    for b in sorted(blocks, key=lambda b: (bool(b.over), -b.bytes)):
        base = b.offset + (phase.kept if b.space == "temporary" else 0)
        tall = b.bytes / high * TALL
        if tall < LOWEST:
            small += 1
            continue
        x, wide = b.first / phase.steps * WIDE, (b.last + 1 - b.first) / phase.steps * WIDE
        over = f", in the place of {b.over}" if b.over else ""
        words = f"{b.name}: {b.type}, {scaled(b.bytes, 'B')}\n{b.line}\n"
        words += f"{b.arena} at {b.offset}{over}, steps {b.first} to {b.last}"
        out.append(box(x, TALL - base / high * TALL - tall, wide, tall, colour(b.line, figures), words))
    step, most = phase.peak()
    at = (step + 0.5) / phase.steps
    out.append(f'<path class=peak d="M{at * WIDE:.1f} 0V{TALL}"/>')
    if phase.kept and phase.temporary:
        out.append(f'<path class=bound d="M0 {TALL - phase.kept / high * TALL:.1f}H{WIDE}"/>')
    up = "".join(f'<span style="bottom:{y / high:.2%}">{scaled(y, "B") if y else "0"}</span>' for y in steps_of(high, 4))
    side = "right" if at > 0.5 else "left"
    place = f"{side}:{(1 - at if side == 'right' else at):.2%}"
    axis = f'<b style="{place}">at most {scaled(most, "B")}, step {step} of {phase.steps}</b>'
    picture = f"<div class=up>{up}</div>{shapes(TALL, ''.join(out), f'memory of {phase.name}', 'marks')}"
    picture += f"<div></div><div class=axis>{axis}</div>"
    more = f"<p class=soft>{small} that are too small to see are left out.</p>" if small else ""
    return f"<div class=wide><div class=map>{picture}</div></div>{more}"


def memory_legend(figures: Figures) -> str:
    blocks = [b for phase in figures.phases for b in phase.blocks]
    total = sum(b.bytes for b in blocks)
    shares: dict[str, float] = {}
    for b in blocks:
        shares[b.line] = shares.get(b.line, 0.0) + b.bytes / total
    return legend(figures, shares) if total else ""


def heading(phase: Phase) -> str:
    sizes = f"{scaled(phase.kept, 'B')} kept, {scaled(phase.temporary, 'B')} temporary"
    return f"<h3>{escape(phase.name)} <span class=soft>{sizes}, {phase.steps} steps</span></h3>"


__all__ = ["heading", "memory_legend", "memory_map"]
