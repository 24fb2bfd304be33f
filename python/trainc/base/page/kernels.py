"""The table of kernels, each with its lines of the model, its loop nest and its assembly to unfold."""

from __future__ import annotations

from html import escape

from trainc.base.page.figures import Figures
from trainc.base.page.marks import colour, row_id
from trainc.base.page.phases import Kernel
from trainc.base.page.sources import dumps_of, source_of
from trainc.base.page.tables import cell, shortened, table, time_cell
from trainc.base.report import scaled

LINES = 6  # of the model that are shown of one kernel
LONGEST = 40_000  # characters of one dump
DUMPS = 2_000_000  # characters of all of them

DUMPED = (
    "Unfold a kernel to see the lines of the model that it is of. With <code>TRAINC_DUMP=loop,asm</code> while the model is "
    "compiled (which compiles what the cache has, too), its loop nest and its assembly are there as well. Above "
    "100% of the roof: it reads from the caches, or only a part of what is counted."
)


class Texts:
    """Texts of which several kernels have the same one: the page has each once, and kernels lead to it."""

    def __init__(self) -> None:
        self._ids: dict[str, str] = {}  # by what it is of
        self._written: list[str] = []
        self._dumped = 0

    def of(self, kernel: Kernel) -> list[tuple[str, str]]:
        """(id, title) of each."""
        found = [(self._add(origin, origin, lambda o=origin: _source(o)), origin) for origin in kernel.origins[:LINES]]
        for what, file in dumps_of(kernel):
            found.append((self._add(str(file), f"{what} {file.name}", lambda f=file: self._dump(f)), what))
        return [(name, title) for name, title in found if name]

    def _add(self, key: str, title: str, text) -> str:
        """Its id; "" where there is nothing to show."""
        if key not in self._ids:
            inside = text()
            name = f"t{len(self._ids)}" if inside else ""
            self._ids[key] = name
            if inside:
                self._written.append(f"<details id={name}><summary>{escape(title)}</summary><pre>{inside}</pre></details>")
        return self._ids[key]

    def _dump(self, file) -> str:
        text = file.read_text(errors="replace")
        self._dumped += min(len(text), LONGEST)
        return shortened(text, LONGEST) if self._dumped <= DUMPS else f"too much for this page: it lies in {escape(str(file))}"

    def html(self) -> str:
        return "".join(self._written)


def _source(origin: str) -> str:
    return "\n".join(
        f"<mark>{n:5} {escape(line)}</mark>" if here else f"{n:5} {escape(line)}" for n, line, here in source_of(origin)
    )  # fmt: skip


def kernels(figures: Figures, texts: Texts) -> str:
    found = sorted(figures.kernels, key=lambda k: (k.seconds, k.flops, k.bytes), reverse=True)
    if not found:
        return ""
    longest = max(k.seconds for k in found) or 1
    rows = []
    for k in found:
        share = figures.roof(k)
        bar = f'<i class="bar {colour(k.line, figures)}" style="width:{k.seconds / longest:.1%}"></i>' if k.seconds else ""
        rows.append([
            f"<tr id={row_id(k, figures)}><td class=line>{_unfolding(k, texts)}{bar}</td>", cell(k.phase), time_cell(k.seconds),
            cell(scaled(k.flops, "FLOP") if k.flops else "", "n", k.flops), cell(scaled(k.bytes, "B"), "n", k.bytes),
            cell(_share(share), "n", share), cell(k.line, "line"),
        ])  # fmt: skip
    heads = ["kernel", "part", "time", "FLOPs", "bytes", "of the roof", "line"]
    return f"<p class=soft>{DUMPED}</p>{table(heads, rows, right=(2, 3, 4, 5))}"


def _share(share: float) -> str:
    return "" if not share else f"{share:.0%}" if share <= 3 else "> 300%"


def _unfolding(kernel: Kernel, texts: Texts) -> str:
    found = texts.of(kernel)
    if not found:
        return escape(kernel.name)
    links = "".join(f"<li><a href=#{name}>{escape(title)}</a></li>" for name, title in found)
    return f"<details class=uses><summary>{escape(kernel.name)}</summary><ul>{links}</ul></details>"


__all__ = ["Texts", "kernels"]
