"""What was compiled, per model and optimizer: the source of `trainc.explain`.

`of(model)` and `of(optimizer)` give the records; each half's report is `Executable.report()` of the compiler, parsed.
"""

from __future__ import annotations

import contextlib
import json
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Compilation:
    """One signature of one model (or one variant of an optimizer's step)."""

    name: str
    signature: str = ""  # in the user's terms: "input_ids i64[4, 256], training"
    recompiled: str = ""  # how it differs from the nearest before: "dimension 1 of `input_ids` changed from 128 to 96"
    trace: str = "static"  # "static" | "symbolic": with symbols for sizes | "sizes": no trace, other sizes of a symbolic one
    trace_reason: str = ""  # why a new shape was traced without symbols
    tune: str = "fast"  # "max": how contractions are cut up is measured
    engine: str = ""  # "core" | "interpreter"
    framework: str = "PyTorch"  # whose program it is, which runs what is not compiled
    # "compiled" | "split": in parts, around code that depends on tensors' values (of JAX's: around what is not compiled) |
    # "dynamo" | "eager"
    route: str = "compiled"
    reason: str = ""  # why not compiled, or why the interpreter
    prints: bool = False  # whether its numbers were others before: `fingerprint` is to tell its graph (numbers/)
    fingerprint: str = ""
    captured: Any = None  # the graph, until the first call is over
    expected: Any = None  # tensors of the first call, until it is over: whose updates fuse_step=True is to fuse
    gradients: list[int] | None = None  # inputs of its graph that the backward makes gradients of
    forward: Any = None  # executables: .report() -> dict
    whole: bool = False  # `forward` is a whole step
    parts: list[Any] = field(default_factory=list)  # executables of a step of JAX's that is compiled in parts
    backward: dict[tuple[bool, ...], Any] = field(default_factory=dict)  # by the tangents that were defined
    retaining: dict[tuple[bool, ...], Any] = field(default_factory=dict)  # those that leave the arena as it is (retain_graph)
    fused: Any = None  # the backward together with the optimizer's step (fuse_step=True)
    deferred: Any = None  # makes outputs that the forward left out; compiled when one is first read
    deferred_bytes: int = 0
    unread: str = ""  # a result that the plans leave to whoever reads it
    optimizer: Any = None
    verified: Any = None  # what verify= found (torch/verify/told.py); its text is told
    fixed: Any = None  # memory.Memory: what no plan can change
    limit: Any = None  # memory.Limit: what the plans may need beside it
    footprint: Any = None  # () -> what the plans need beside it (base/plans.py), or None
    capture_seconds: float = 0.0
    compile_seconds: float = 0.0

    @contextlib.contextmanager
    def compiling(self) -> Iterator[None]:
        """Counts the time that passes as spent on compiling."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.compile_seconds += time.perf_counter() - start

    def memory(self) -> Any:
        """memory.Memory: what a step needs at its peak; None where that is not known."""
        footprint = self.footprint() if self.footprint is not None and self.fixed is not None else None
        return None if footprint is None else self.fixed.with_footprint(footprint)

    def executables(self) -> list[Any]:
        backward = (*self.backward.values(), *self.retaining.values())
        return [e for e in (self.forward, *self.parts, *backward, self.fused, self.deferred, self.optimizer) if e is not None]

    def reports(self) -> list[dict]:
        return [report_of(executable) for executable in self.executables()]

    def externs(self) -> list[tuple[str, str]]:
        """(operation, the user's line) of each call that PyTorch runs inside the plans."""
        found = []
        for report in self.reports():
            for step in report.get("steps", []):
                if step.get("kind") == "extern":
                    found.append((step["name"], ", ".join(step.get("origins", []))))
        return found


def report_of(executable: Any) -> dict:
    report = executable.report()
    return json.loads(report) if isinstance(report, str) else report


_records: weakref.WeakKeyDictionary[Any, list[Compilation]] = weakref.WeakKeyDictionary()


def share(owner: Any, compilations: list[Compilation]) -> None:
    """What is compiled for `owner` is told with these."""
    _records[owner] = compilations


def of(owner: Any) -> list[Compilation]:
    """The compilations of a model or an optimizer given to `trainc.compile`; empty where there are none."""
    return _records.setdefault(owner, [])
