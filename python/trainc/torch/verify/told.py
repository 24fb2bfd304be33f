"""What is told of a verified step: a line in `trainc.explain`, or the one error that says where it parts from PyTorch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch

from trainc.base import messages
from trainc.base.errors import VerifyError
from trainc.torch.graph import wire
from trainc.torch.verify import report
from trainc.torch.verify.bounds import Distance
from trainc.torch.verify.case import Case
from trainc.torch.verify.locate import Found, locate
from trainc.torch.verify.oracle import largest
from trainc.torch.verify.update import Update

Tensor = torch.Tensor


def goes_on() -> str:
    """What becomes of the program: a warning goes on, an error does not."""
    return " It goes on in PyTorch, with eager's numbers for this step, too: nothing is lost." if messages.falls_back() else ""


@dataclasses.dataclass
class Summary:
    """What agreed, of one signature or of one optimizer."""

    calls: int = 0
    programs: int = 0  # calls that were also compared with the program itself
    steps: int = 0
    ratios: dict[str, float] = dataclasses.field(default_factory=dict)
    skipped: str = ""  # why the program itself was not run beside the graph
    failed: str = ""  # why something could not be compared at all
    differs: bool = False  # the record's reason says in what

    def seen(self, error: VerifyError | None) -> VerifyError | None:
        """Remembers that something differs."""
        self.differs = self.differs or error is not None
        return error

    def see(self, what: str, found: Iterable[tuple[Any, Distance]]) -> None:
        self.ratios[what] = max(self.ratios.get(what, 0.0), largest(found))

    def __str__(self) -> str:
        if self.differs or self.failed:
            return "verified: it differs from PyTorch" if self.differs else f"not verified: {self.failed}"
        count, noun = (self.steps, "step") if self.steps else (self.calls, "call")
        agree = f"{count} {noun}s agree" if count != 1 else f"1 {noun} agrees"
        told = ", ".join(f"{what} at most {ratio:.2f}" for what, ratio in self.ratios.items())
        beside = f"; its trace, not the program: {self.skipped}" if self.skipped else ""
        return f"verified: {agree} with PyTorch; error over eager's: {told}{beside}"


T = TypeVar("T")


def unharmed(summary: Summary, otherwise: T, look: Callable[[], T]) -> T:
    """`look()`; where looking itself fails, by a fault of ours or for want of memory, the program goes on as if it had not been
    looked at, and `explain` says so."""
    try:
        return look()
    except Exception as error:
        messages.require_fallback(error)
        summary.failed = f"{type(error).__name__}: {error}".splitlines()[0]
        messages.warn_once(f"verify {summary.failed}", f"verify= cannot compare a step with PyTorch: {summary.failed}")
        return otherwise


def describe(case: Case, difference: tuple[int, Distance] | None, what: str, name: str) -> VerifyError:
    """The plans of `case` give something else than its graph says: which operation, and a file that shows it."""
    if difference is None:
        shown = written(case, f"{name}: {what} is left in another state than PyTorch's", None)
        return VerifyError(f"{name}: verify: {what} is left in another state than PyTorch leaves it in.{goes_on()}{shown}")
    place, distance = difference
    wrong = case.results[place]
    unknown = Found(False, wire.target_name(wrong.target), wire.origin(wrong), case, None)
    found = found_or(lambda: locate(case, place), unknown)
    where = f" at {found.line}" if found.line else ""
    operation = f"{found.operation}{where}"
    one = f"{name}: {operation}"
    smallest, far = (found.case, found.distance) if found.case is not None else (case, distance)
    shown = written(smallest, one, far)
    if found.first:
        operation += " is the first operation that differs"
    elif found.case is not None:
        operation += " gives it; no operation differs by itself, the plans of the whole step do"
    else:
        operation += " gives it; compiled again, the step agrees"
    return VerifyError(f"{name}: verify: {what} is {by(distance)}; {operation}.{goes_on()}{shown}")


def found_or(search: Callable[[], T], otherwise: T) -> T:
    """A difference that was seen is told, whatever becomes of the search for its operation."""
    try:
        return search()
    except Exception:
        return otherwise


def written(case: Case | Update, what: str, distance: Distance | None) -> str:
    """Where a report was written, as the last sentence of a message; empty where none could be."""
    try:
        path = report.write(case, what, distance)
    except Exception:  # a case that cannot be written as text
        path = None
    return f" `trainc bug-report {path}` shows it again; the file holds numbers of this step." if path else ""


def of_program(
    name: str, what: str, distance: Distance | None = None, node: torch.fx.Node | None = None
) -> VerifyError:
    """The program does something else than what was traced, from `node` of the trace on."""
    far = f" ({by(distance)})" if distance is not None else ""
    where = ""
    if node is not None and node.op == "call_function":
        where = f" {wire.target_name(node.target)} at {wire.origin(node)} gave something else when it was traced."
    return VerifyError(
        f"{name}: verify: {what}{far} when forward itself runs again: it is not what was traced, though nothing that is watched "
        f"has changed.{where}{goes_on()} Please report it, with the program."
    )


def by(distance: Distance) -> str:
    """How far."""
    if distance.error == float("inf"):
        return "NaN, infinite or of another shape where PyTorch's is not"
    return f"{distance.error:.1e} of its size from a float64 run, where {distance.allowed:.1e} is allowed"


__all__ = ["Summary", "by", "describe", "found_or", "goes_on", "of_program", "unharmed", "written"]
