"""A report as one HTML page, which needs nothing beside itself.

Plain strings and not a template engine: the page is a dozen sections of tables, and another package for every user would bring
only what `html.escape` does. What a model's names or files say is escaped where it is written; the script builds no HTML.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from pathlib import Path

from trainc.base.page import pictures
from trainc.base.page.figures import Figures, Kernel, dumps_of, graphs_of, source_of
from trainc.base.page.pictures import milliseconds
from trainc.base.report import REFUSED, scaled

HERE = Path(__file__).parent
SHOWN = 600  # kernels with their sources, by time
LONGEST = 20_000  # characters of one text
HOW = "with trainc.profile(model, optimizer):\n    train one step as always\ntrainc.report((model, optimizer), \"report.html\")"


def page(figures: Figures) -> str:
    title = escape(figures.explanation.title)
    style, script = ((HERE / name).read_text(encoding="utf-8") for name in ("style.css", "script.js"))
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{title}: trainc report</title><style>{style}</style></head><body>"
        f"<header><h1>{title}</h1><button id=theme hidden>light / dark</button></header><div id=tip role=tooltip hidden></div>"
        f"<main>{body(figures)}</main><script>{script}</script></body></html>"
    )


def body(figures: Figures) -> str:
    if not figures.explanation.compilations:
        return f"<p>{escape(str(figures.explanation))}</p>"
    parts = [_facts(figures), _reasons(figures), _time(figures), _memory(figures), _kernels(figures), _externs(figures)]
    return "".join([*parts, _remarks(figures), _plans(figures), _details("All that explain tells", str(figures.explanation))])


def brief(figures: Figures) -> str:
    """For a notebook: what stands at the top, and the text to unfold."""
    facts = _facts(figures) if figures.explanation.compilations else ""
    return f"<div>{facts}{_reasons(figures)}{_details(figures.explanation.title, str(figures.explanation))}</div>"


# ---- sections --------------------------------------------------------------------------------------------------------


def _facts(figures: Figures) -> str:
    explanation, sum_ = figures.explanation, figures.explanation.totals
    memory, facts = explanation.memory, []
    if figures.timed:
        share = figures.compiled_seconds / figures.seconds
        facts.append(("a step, inside its plans", milliseconds(figures.seconds), f"{share:.1%} of it in compiled kernels"))
    else:
        facts.append(("a step", "not timed", "see Time"))
    if figures.kernels:
        facts.append(("compiled", f"{sum_.flops_share:.1%}", f"of {scaled(sum_.flops, 'FLOP')} in all that was compiled"))
    if memory is not None:
        beside = f"{scaled(memory.growth, 'B')} beside model and batch"
        facts.append(("memory at the peak", scaled(memory.total, "B"), beside))
    facts.append(("signatures", str(len(explanation.compilations)), f"{sum_.kernels} kernels, {sum_.externs} calls of PyTorch"))
    rows = "".join(f"<div><dt>{escape(a)}</dt><dd>{escape(b)}<small>{escape(c)}</small></dd></div>" for a, b, c in facts)
    return f"<dl class=facts>{rows}</dl>"


def _reasons(figures: Figures) -> str:
    """Each signature: what runs where, recompiles and fallbacks, what verify= found."""
    rows = []
    for c in figures.explanation.compilations:
        told = [f"compiled again: {c.recompiled}"] if c.recompiled else []
        if c.route == "eager" or c.engine == "interpreter":
            told.append(f"runs in PyTorch: {c.reason or 'operation by operation'}")
        elif c.reason:
            told.append(c.reason)
        if c.verified is not None:
            told.append(str(c.verified))
        spent = f"capture {c.capture_seconds:.1f} s, compile {c.compile_seconds:.1f} s"
        rows.append([_td(c.signature or c.name, "line"), _td("; ".join(told) or "compiled"), _td(spent)])
    return "<h2>Signatures</h2>" + _table(["signature", "what became of it", "start"], rows, sorts=False) if rows else ""


def _time(figures: Figures) -> str:
    if not figures.timed:
        return f"<h2>Time</h2><p>No step was timed. To time one:</p><pre>{escape(HOW)}</pre>"
    out = [
        "<h2>Time of a step</h2><p class=soft>Kernels in order, coloured by line of the model. They run one after another, each "
        "on all threads; what Python and PyTorch do between the plans is not in it.</p>",
        pictures.timeline(figures),
    ]
    if plot := pictures.roofline(figures):
        peaks = figures.peaks or {}
        out.append(
            f"<h2>Roofline</h2><p class=soft>One dot a kernel, larger where it takes longer. The roof: "
            f"{escape(scaled(peaks['flops'], 'FLOP/s'))} and {escape(scaled(peaks['bytes'], 'B/s'))}, {escape(peaks['from'])}. "
            f"A kernel above the slope reads from the caches.</p>{plot}"
        )
    return "".join(out)


def _memory(figures: Figures) -> str:
    total = figures.explanation.memory
    if total is None:
        return ""
    named = {
        "model": total.model, "gradients": total.gradients, "optimizer state": total.optimizer, "batch": total.batch,
        "kept for the backward": total.saved, "temporary": total.temporary, "results": total.results,
    }  # fmt: skip
    rows = [
        [_td(name), _td(scaled(size, "B"), "n", size), _bar(size / total.total)]
        for name, size in named.items()
        if size
    ]
    out = ["<h2>Memory of a step</h2>", _table(["what", "bytes", "share"], rows, sorts=False, right=(1,))]
    for phase in figures.phases:
        if picture := pictures.memory(phase):
            sizes = f"{scaled(phase.kept, 'B')} kept, {scaled(phase.temporary, 'B')} temporary"
            out.append(f"<h3>{escape(phase.name)} <span class=soft>{sizes}</span></h3>{picture}")
    if len(out) > 2:
        out.append("<p class=soft>Height: the place in memory, kept below, temporary above; width: the steps that it lives.</p>")
    return "".join(out)


def _kernels(figures: Figures) -> str:
    kernels = sorted(figures.kernels, key=lambda k: (k.seconds, k.flops, k.bytes), reverse=True)
    if not kernels:
        return ""
    longest = max(k.seconds for k in kernels) or 1
    rows = []
    for i, k in enumerate(kernels):
        share = figures.roof(k)
        bar = f'<i class=bar style="width:{100 * k.seconds / longest:.1f}%"></i>' if k.seconds else ""
        name = _unfolding(k) if i < SHOWN else escape(k.name)
        rows.append([
            f"<td class=line>{name}{bar}</td>", _td(k.phase), _time_of(k),
            _td(scaled(k.flops, "FLOP"), "n", k.flops), _td(scaled(k.bytes, "B"), "n", k.bytes),
            _td(f"{share:.0%}" if share else "", "n", share), _td(k.line, "line"),
        ])  # fmt: skip
    heads = ["kernel", "part", "time", "FLOPs", "bytes", "of the roof", "line"]
    dumped = "Loop nests and assembly are here where <code>TRAINC_DUMP=loop,asm</code> wrote them while the model was compiled "
    dumped += "(a plan from the cache has none: <code>TRAINC_CACHE=0</code>)."
    return f"<h2>Kernels</h2><p class=soft>{dumped}</p>{_table(heads, rows, right=(2, 3, 4, 5))}"


def _unfolding(kernel: Kernel) -> str:
    inside = []
    for origin in kernel.origins[:4]:
        lines = source_of(origin)
        text = "\n".join(
            f"<mark>{n:5} {escape(line)}</mark>" if here else f"{n:5} {escape(line)}" for n, line, here in lines
        )  # fmt: skip
        inside.append(f"<p><code>{escape(origin)}</code></p>" + (f"<pre>{text}</pre>" if text else ""))
    inside += [f"<p>{escape(what)}</p><pre>{escape(text[:LONGEST])}</pre>" for what, text in dumps_of(kernel)]
    return f"<details><summary>{escape(kernel.name)}</summary>{''.join(inside)}</details>" if inside else escape(kernel.name)


def _externs(figures: Figures) -> str:
    rows = [
        [_td(k.name, "line"), _td(k.reason), _time_of(k), _td(k.line, "line")]
        for k in figures.kernels
        if k.kind == "extern"
    ]
    heads = ["operation", "why", "time", "line"]
    return "<h2>Run by PyTorch</h2>" + (_table(heads, rows, right=(2,)) if rows else "<p>Nothing.</p>") if figures.kernels else ""


def _remarks(figures: Figures) -> str:
    rows = [
        [
            _td(REFUSED.get(r.what, r.what)), _td(r.reason + (f": {r.detail}" if r.detail else "")),
            _td(str(r.count), "n", r.count), _td(scaled(r.bytes, "B"), "n", r.bytes), _td(" <- ".join(r.origins), "line"),
        ]
        for r in figures.explanation.remarks
    ]  # fmt: skip
    heads = ["what", "why", "times", "bytes", "lines"]
    return f"<h2>Refused, and why</h2>{_table(heads, rows, right=(2, 3))}" if rows else ""


def _plans(figures: Figures) -> str:
    out, dumped = [], False
    for phase in figures.phases:
        if phase.text:
            out.append(_details(f"Plan: {phase.name}", phase.text, 400_000))
        for file, text in graphs_of(phase.plan):
            dumped = True
            out.append(_details(f"Graph: {file}", text, 400_000))
    if out and not dumped:
        out.append("<p class=soft>The graph before and after passes is here where <code>TRAINC_DUMP=graph</code> wrote it.</p>")
    return "<h2>Inside</h2>" + "".join(out) if out else ""


# ---- pieces ----------------------------------------------------------------------------------------------------------


def _td(text: str, kind: str = "", value: float | None = None) -> str:
    sorts = "" if value is None else f' data-value="{value}"'
    return f'<td{f" class={kind}" if kind else ""}{sorts}>{escape(text)}</td>'


def _table(heads: list[str], rows: Iterable[list[str]], sorts: bool = True, right: tuple[int, ...] = ()) -> str:
    head = "".join(f"<th{' class=n' if i in right else ''}>{h}</th>" for i, h in enumerate(heads))
    inside = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    kind = " class=sorts" if sorts else ""
    return f"<div class=wide><table{kind}><thead><tr>{head}</tr></thead><tbody>{inside}</tbody></table></div>"


def _bar(share: float) -> str:
    return f'<td><i class=bar style="width:{100 * share:.2f}%"></i></td>'


def _time_of(kernel: Kernel) -> str:
    return _td(milliseconds(kernel.seconds) if kernel.seconds else "", "n", kernel.seconds)


def _details(title: str, text: str, longest: int = 200_000) -> str:
    cut = f"\n... {len(text) - longest} more characters" if len(text) > longest else ""
    return f"<details><summary>{escape(title)}</summary><pre>{escape(text[:longest])}{cut}</pre></details>"
