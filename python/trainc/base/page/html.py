"""A report as one HTML page, which needs nothing beside itself.

Plain strings and not a template engine: the page is a dozen sections of tables, and another package for every user would bring
only what `html.escape` does. What a model's names or files say is escaped where it is written; the script builds no HTML.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

from trainc.base.page.figures import Figures
from trainc.base.page.kernels import Texts, kernels
from trainc.base.page.marks import percent, seconds_text
from trainc.base.page.memory_map import heading, memory_legend, memory_map
from trainc.base.page.roofline import roofline
from trainc.base.page.sources import graphs_of
from trainc.base.page.tables import cell, details, table, time_cell
from trainc.base.page.timeline import timeline
from trainc.base.report import REFUSED, count, scaled

HERE = Path(__file__).parent
REMARKS = 400  # rows
HOW = 'with trainc.profile(model, optimizer):\n    train one step as always\ntrainc.report((model, optimizer), "report.html")'


def page(figures: Figures) -> str:
    title = escape(figures.explanation.title)
    style, script = ((HERE / name).read_text(encoding="utf-8") for name in ("style.css", "script.js"))
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{title}: trainc report</title><style>{style}</style></head><body>"
        f'<header><h1>{title}</h1><button id=theme type=button hidden title="dark mode ( d )">light / dark</button></header>'
        f"<div id=tip role=tooltip hidden></div><main>{body(figures)}</main><script>{script}</script></body></html>"
    )


def body(figures: Figures) -> str:
    if not figures.explanation.compilations:
        return f"<p class=lead>{escape(str(figures.explanation))}</p>"
    texts = Texts()
    sections = [
        ("signatures", "Signatures", _signatures(figures)),
        ("time", "Time of a step", _time(figures)),
        ("roofline", "Roofline", _roofline(figures)),
        ("memory", "Memory of a step", _memory(figures)),
        ("kernels", "Kernels", kernels(figures, texts)),
        ("externs", "Run by PyTorch", _externs(figures)),
        ("refused", "Refused, and why", _remarks(figures)),
        ("inside", "Inside", _inside(figures)),
        ("sources", "Source and code", texts.html()),
    ]
    there = [(name, title, text) for name, title, text in sections if text]
    links = "".join(f"<a href=#{name}>{title}</a>" for name, title, _ in there)
    shown = "".join(f"<section id={name}><h2>{title}</h2>{text}</section>" for name, title, text in there)
    return f"{_facts(figures)}<nav>{links}</nav>{shown}"


def brief(figures: Figures) -> str:
    """For a notebook: what stands at the top, and the text to unfold. Without the page's style: it would change the notebook."""
    explanation = figures.explanation
    if not explanation.compilations:
        return f"<p>{escape(str(explanation))}</p>"
    rows = "".join(f"<tr><th>{escape(a)}</th><td>{escape(b)}</td><td>{escape(c)}</td></tr>" for a, b, c in _told(figures))
    return f"<table>{rows}</table>{_signatures(figures)}{details(explanation.title, str(explanation))}"


# ---- sections --------------------------------------------------------------------------------------------------------


def _told(figures: Figures) -> list[tuple[str, str, str]]:
    """(what, how much, more about it) of the facts at the top."""
    explanation, sum_ = figures.explanation, figures.explanation.totals
    memory, facts = explanation.memory, []
    if figures.timed:
        share = figures.compiled_seconds / figures.seconds
        between = figures.wall - figures.seconds
        beside = f", {seconds_text(between)} beside them" if between > 0 else ""
        facts.append(("a step, in its plans", seconds_text(figures.seconds), f"{percent(share)} in compiled kernels{beside}"))
    else:
        facts.append(("a step", "not timed", "see below how"))
    if figures.kernels:
        facts.append(("compiled", percent(sum_.flops_share), f"of {scaled(sum_.flops, 'FLOP')} in all that was compiled"))
    if memory is not None:
        beside = f"{scaled(memory.growth, 'B')} beside model and batch"
        facts.append(("memory at the peak", scaled(memory.total, "B"), beside))
    work = f"{count(sum_.kernels, 'kernel')}, {count(sum_.externs, 'call')} of {_framework(figures)}"
    facts.append(("signatures", str(len(explanation.compilations)), work))
    return facts


def _framework(figures: Figures) -> str:
    return next((c.framework for c in figures.explanation.compilations), "PyTorch")


def _facts(figures: Figures) -> str:
    rows = "".join(f"<div><dt>{escape(a)}</dt><dd>{escape(b)}<small>{escape(c)}</small></dd></div>" for a, b, c in _told(figures))
    return f"<dl class=facts>{rows}</dl>"


def _signatures(figures: Figures) -> str:
    """Each signature: what runs where, recompiles and fallbacks, what verify= found."""
    rows = []
    for c in figures.explanation.compilations:
        told = [f"compiled again: {c.recompiled}"] if c.recompiled else []
        if c.route == "eager" or c.engine == "interpreter":
            told.append(f"runs in {c.framework}: {c.reason or 'operation by operation'}")
        elif c.reason:
            told.append(c.reason)
        if c.verified is not None:
            told.append(str(c.verified))
        spent = f"{c.capture_seconds:.1f} s, {c.compile_seconds:.1f} s"
        rows.append([cell(c.signature or c.name, "line"), cell("; ".join(told) or "compiled"), cell(spent, "n")])
    return table(["signature", "what became of it", "capture, compile"], rows, sorts=False, right=(2,))


def _time(figures: Figures) -> str:
    if not figures.timed:
        return f"<p>No step was timed. To time one:</p><pre>{escape(HOW)}</pre>"
    told = "Kernels in order, by thread; a colour is a line of the model. "
    if figures.one_step:
        told += "Hatched: what Python and PyTorch do between two plans."
    else:
        told += "The plans ran last in different steps: they are laid end to end."
    if figures.idle >= 0.1:
        told += f" In {percent(figures.idle)} of the plans' time no thread works: kernels are short, or others have the cores."
    return f"<p class=soft>{told}</p>{timeline(figures)}"


def _roofline(figures: Figures) -> str:
    plot = roofline(figures)
    if not plot:
        return ""
    peaks = figures.peaks or {}
    without = [k for k in figures.kernels if k.seconds and not k.flops]
    share = percent(sum(k.seconds for k in without) / figures.seconds)
    told = f" Without FLOPs that are counted, and so not here: {count(len(without), 'kernel')}, {share} of the time."
    roof = f"{scaled(peaks['flops'], 'FLOP/s')} and {scaled(peaks['bytes'], 'B/s')}, {peaks['from']}"
    return (
        f"<p class=soft>One dot a kernel, larger where it takes longer. The roof: {escape(roof)}. A kernel above the slope reads "
        f"from the caches.{told if without else ''}</p>{plot}"
    )


def _memory(figures: Figures) -> str:
    total, out = figures.explanation.memory, []
    if total is not None:
        named = {
            "model": total.model, "gradients": total.gradients, "optimizer state": total.optimizer, "batch": total.batch,
            "kept for the backward": total.saved, "temporary": total.temporary, "results": total.results,
        }  # fmt: skip
        bar = '<td class=share><i class=bar style="width:{:.2%}"></i></td>'
        rows = [[cell(n), cell(scaled(size, "B"), "n"), bar.format(size / total.total)] for n, size in named.items() if size]
        out.append(table(["what", "bytes", "share"], rows, sorts=False, right=(1,)))
    maps = [heading(phase) + picture for phase in figures.phases if (picture := memory_map(phase, figures))]
    if maps:
        out.append(
            "<p class=soft>What lives when in the memory of each plan: up, its place (what is kept for the backward below, "
            "temporary above); across, the steps of the plan.</p>"
        )
    return "".join([*out, *maps, memory_legend(figures) if maps else ""])


def _externs(figures: Figures) -> str:
    if not figures.kernels:
        return ""
    rows = [
        [cell(k.name, "line"), cell(k.reason), cell(k.phase), time_cell(k.seconds), cell(k.line, "line")]
        for k in figures.kernels
        if k.kind == "extern"
    ]
    return table(["operation", "why", "part", "time", "line"], rows, right=(3,)) if rows else "<p>Nothing.</p>"


def _remarks(figures: Figures) -> str:
    remarks = figures.explanation.remarks
    rows = [
        [
            cell(REFUSED.get(r.what, r.what)), cell(r.reason + (f": {r.detail}" if r.detail else "")),
            cell(str(r.count), "n", r.count), cell(scaled(r.bytes, "B"), "n", r.bytes), cell(" <- ".join(r.origins), "line"),
        ]
        for r in remarks[:REMARKS]
    ]  # fmt: skip
    if not rows:
        return ""
    told = "What would have spared memory or its traffic and was looked into: why two kernels are not one, for example."
    more = f"<p class=soft>And {len(remarks) - REMARKS} of fewer bytes.</p>" if len(remarks) > REMARKS else ""
    return f"<p class=soft>{told}</p>{table(['what', 'why', 'times', 'bytes', 'lines'], rows, right=(2, 3))}{more}"


def _inside(figures: Figures) -> str:
    out, graphs = [details("All that explain tells", str(figures.explanation))], []
    for phase in figures.phases:
        if phase.text:
            out.append(details(f"Plan: {phase.name}", phase.text))
        if phase.graph is not None and not any(phase.graph is graph for graph in graphs):
            graphs.append(phase.graph)
            out += [details(f"Graph {what}", text) for what, text in graphs_of(phase)]
    return "".join(out)


__all__ = ["brief", "page"]
