"""The user's lines, of MLIR's locations."""

from __future__ import annotations

import os
import re

from jaxlib.mlir import ir

from trainc.base import PACKAGE

_CALLS = re.compile(r"\b(Stateful)?PartitionedCall(_\d+)?/")  # TensorFlow's, of functions within functions
_PACKAGES = os.sep + "site-packages" + os.sep


class Origins:
    """Numbers for distinct origins, in the order in which they are met."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._known: dict[ir.Location, int] = {}

    @property
    def lines(self) -> list[str]:
        return list(self._numbers)

    def number(self, location: ir.Location) -> int:
        found = self._known.get(location)
        if found is None:
            found = self._known[location] = self._numbers.setdefault(origin(location), len(self._numbers))
        return found


def origin(location: ir.Location) -> str:
    """ "train.py:41 (jit(step)/transpose(jvp(loss))/add)"; without what is not known."""
    name = _name(location)
    files = _files(location)
    own = [f for f in files if _PACKAGES not in f.filename and not f.filename.startswith(PACKAGE)]
    line = next((f"{os.path.basename(f.filename)}:{f.start_line}" for f in own or ([] if _is_fused(location) else files)), "")
    return " ".join(filter(None, (line, name and f"({name})")))


def _is_fused(location: ir.Location) -> bool:
    """Of XLA's own modules (TensorFlow's): a name, and a file that often is TensorFlow's own."""
    return isinstance(location, ir.FusedLoc)


def _name(location: ir.Location) -> str:
    """The outermost: names further in are of functions."""
    if _is_fused(location):
        name = next((part.name_str for part in location.locations if isinstance(part, ir.NameLoc)), "")
        return _CALLS.sub("", name.rpartition(";")[2])
    return location.name_str if isinstance(location, ir.NameLoc) else ""


def _files(location: ir.Location) -> list[ir.FileLineColLoc]:
    """Those of the innermost function first."""
    if isinstance(location, ir.FileLineColLoc):
        return [location]
    if isinstance(location, ir.NameLoc):
        return _files(location.child_loc)
    if isinstance(location, ir.CallSiteLoc):
        return _files(location.callee) + _files(location.caller)
    if isinstance(location, ir.FusedLoc):
        return [file for part in location.locations for file in _files(part)]
    return []


__all__ = ["Origins", "origin"]
