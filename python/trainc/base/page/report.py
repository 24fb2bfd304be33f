"""What `trainc.report` returns and writes."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainc.base.errors import UserError
from trainc.base.page import html, trace
from trainc.base.page.figures import Figures
from trainc.base.report import Explanation


class Report:
    """What `trainc.report` returns: `str()` of it says where the file is and what it holds; `as_dict()` has the numbers."""

    @classmethod
    def of(cls, explained: list[Explanation], path: Any, peaks: Callable[[], dict] | None = None) -> Report:
        """Of a step of several that belong together, the model first. `peaks`: Figures.measure's; without it no roofline."""
        where = path_of(path)
        compilations = list({id(c): c for e in explained for c in e.compilations}.values())
        figures = Figures(Explanation(explained[0].title, compilations))
        if peaks is not None:
            figures.measure(peaks)
        return cls(figures, where)

    def __init__(self, figures: Figures, path: Path):
        """`path`: as `path_of` gives it."""
        self.figures, self.path = figures, path
        text = html.page(figures) if self.path.suffix == ".html" else json.dumps(trace.trace(figures))
        try:
            _write(self.path, text)
        except (OSError, ValueError) as error:  # ValueError: a name that no file can have
            reason = getattr(error, "strerror", None) or error
            raise UserError(f"trainc.report cannot write {self.path}: {reason}") from None

    def as_dict(self) -> dict:
        """The figures of the page, for programs: seconds, FLOP, bytes, of each kernel and of the step."""
        return self.figures.as_dict()

    def __str__(self) -> str:
        return f"{self.figures.explanation.title}: report in {self.path}" + ("" if self.figures.timed else " (no step was timed)")

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html.brief(self.figures)


def path_of(path: Any) -> Path:
    """Where a report is to be written; UserError, before anything is done, where its name does not say what."""
    if not isinstance(path, (str, os.PathLike)) or Path(path).suffix not in (".html", ".json"):
        raise UserError(f"trainc.report writes report.html (a page) or trace.json (a trace): {path!r} is neither")
    folder = Path(path).parent
    if not folder.is_dir():
        raise UserError(f"trainc.report cannot write {path}: there is no folder {folder}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"trainc.report cannot write {path}: the folder {folder} is not to be written in")
    if os.path.isdir(path):
        raise UserError(f"trainc.report cannot write {path}: it is a folder")
    return Path(path)


def _write(path: Path, text: str) -> None:
    """Whole or not at all."""
    handle, unfinished = tempfile.mkstemp(dir=path.parent, prefix=".report-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as out:
            out.write(text)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(unfinished, 0o666 & ~mask)
        os.replace(unfinished, path)
    except BaseException:
        os.unlink(unfinished)
        raise
