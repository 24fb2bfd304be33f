"""Pieces of HTML: cells, tables, texts to unfold. What they are given as text is escaped here."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from trainc.base.page.marks import seconds_text

LONGEST = 300_000  # characters of one text


def cell(text: str, kind: str = "", value: float | None = None) -> str:
    """`value`: what a number is sorted by."""
    sorts = "" if value is None else f' data-value="{value:.9g}"'
    return f"<td{f' class={kind}' if kind else ''}{sorts}>{escape(text)}</td>"


def time_cell(seconds: float) -> str:
    return cell(seconds_text(seconds) if seconds else "", "n", seconds)


def table(heads: list[str], rows: Iterable[list[str]], sorts: bool = True, right: tuple[int, ...] = ()) -> str:
    """A row's first entry may begin with the row's own `<tr ...>`."""
    head = "".join(f"<th scope=col{' class=n' if i in right else ''}>{h}</th>" for i, h in enumerate(heads))
    inside = "".join(f"{'' if row[0].startswith('<tr') else '<tr>'}{''.join(row)}</tr>" for row in rows)
    kind = " class=sorts" if sorts else ""
    return f"<div class=wide><table{kind}><thead><tr>{head}</tr></thead><tbody>{inside}</tbody></table></div>"


def details(title: str, text: str) -> str:
    return f"<details><summary>{escape(title)}</summary><pre>{shortened(text)}</pre></details>"


def shortened(text: str, longest: int = LONGEST) -> str:
    more = f"\n... {len(text) - longest} more characters" if len(text) > longest else ""
    return f"{escape(text[:longest])}{more}"


__all__ = ["cell", "details", "shortened", "table", "time_cell"]
