"""`trainc plan-cluster --page`: its predictions as one HTML page, which needs nothing beside itself."""

from __future__ import annotations

from html import escape

from trainc.base.cluster import Prediction, Span, Workload
from trainc.base.network import Network
from trainc.base.page.html import HERE
from trainc.base.page.marks import WIDE, box, percent, seconds_text, shapes, steps_of
from trainc.base.page.tables import cell, table
from trainc.base.report import scaled

TALL = 20
KINDS = {"forward": "c1", "backward": "c2", "update": "c3", "bucket": "c5", "gather": "c6", "scatter": "c8", "buffers": "c7"}
WITHIN, EXPOSED = "c1", "c4"


def page(work: Workload, network: Network, found: list[Prediction]) -> str:
    style, script = ((HERE / name).read_text(encoding="utf-8") for name in ("style.css", "script.js"))
    title = escape(work.title)
    ways = dict.fromkeys(p.way for p in found)
    sections = "".join(_way(way, [p for p in found if p.way == way]) for way in ways)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{title}: on a cluster</title><style>{style}</style></head><body>"
        f'<header><h1>{title} on a cluster</h1><button id=theme type=button hidden title="dark mode ( d )">light / dark</button>'
        f"</header><div id=tip role=tooltip hidden></div><main>{_facts(work, network)}{sections}</main>"
        f"<script>{script}</script></body></html>"
    )


def _facts(work: Workload, network: Network) -> str:
    parts = f"until the backward {seconds_text(work.forward)}, backward {seconds_text(work.backward)}"
    told = [
        ("a step on one rank", seconds_text(work.step), parts),
        ("gradients", scaled(work.bytes, "B"), f"of {len(work.gradients)} parameters"),
        ("memory of one rank", scaled(sum(work.memory.values()), "B"), "what the step needs"),
        ("network", f"{scaled(network.link.bandwidth, 'B/s')}", str(network)),
    ]
    rows = "".join(f"<div><dt>{escape(a)}</dt><dd>{escape(b)}<small>{escape(c)}</small></dd></div>" for a, b, c in told)
    return f"<dl class=facts>{rows}</dl>"


def _way(way: str, found: list[Prediction]) -> str:
    last = found[-1]
    heads = ["ranks", "step", "communication", "exposed", "efficiency", "memory a rank", "algorithm"]
    rows = [
        [
            cell(f"{p.ranks:,}", "n"), cell(seconds_text(p.step), "n"), cell(seconds_text(p.communication), "n"),
            cell(seconds_text(p.exposed), "n"), cell(percent(p.efficiency), "n"), cell(scaled(p.memory, "B"), "n"),
            cell(p.algorithm),
        ]
        for p in found
    ]  # fmt: skip
    return (
        f"<section><h2>{way}</h2>{table(heads, rows, sorts=False, right=tuple(range(6)))}"
        f"<h3>A step by ranks</h3>{_bars(found)}<h3>A step of {last.ranks:,} ranks</h3>{_timeline(last.spans)}</section>"
    )


def _bars(found: list[Prediction]) -> str:
    most = max(p.step for p in found) or 1.0
    lanes = []
    for p in found:
        work, unit = p.step - p.exposed, WIDE / most
        inside = box(0, 0, work * unit, TALL, WITHIN, f"{p.ranks} ranks: work, {seconds_text(work)}")
        if p.exposed:
            inside += box(work * unit, 0, p.exposed * unit, TALL, EXPOSED, f"{p.ranks} ranks: exposed, {seconds_text(p.exposed)}")
        lanes.append(f"<small>{p.ranks:,}</small>{shapes(TALL, inside, f'{p.ranks} ranks', 'marks')}")
    return f"{_legend({'work': WITHIN, 'exposed communication': EXPOSED})}<div class=lanes>{''.join(lanes)}{_axis(most)}</div>"


def _timeline(spans: list[Span]) -> str:
    end = max((span.end for span in spans), default=0.0) or 1.0
    lanes, kinds = [], {}
    for lane in ("compute", "network"):
        inside = ""
        for span in (s for s in spans if s.lane == lane):
            kind = span.name.split()[0]
            kinds[kind] = KINDS.get(kind, "c0")
            seconds = seconds_text(span.end - span.start)
            inside += box(
                span.start / end * WIDE, 0, (span.end - span.start) / end * WIDE, TALL, kinds[kind], f"{span.name}: {seconds}"
            )
        lanes.append(f"<small>{lane}</small>{shapes(TALL, inside, lane, 'marks')}")
    return f"{_legend(kinds)}<div class=lanes>{''.join(lanes)}{_axis(end)}</div>"


def _axis(most: float) -> str:
    marks = (f'<span style="left:{t / most:.2%}">{seconds_text(t) if t else "0"}</span>' for t in steps_of(most))
    return f"<small></small><div class=axis>{''.join(marks)}</div>"


def _legend(kinds: dict[str, str]) -> str:
    items = "".join(f"<li><i class={kind}></i><span>{escape(name)}</span></li>" for name, kind in kinds.items())
    return f"<ul class=legend>{items}</ul>"


__all__ = ["page"]
