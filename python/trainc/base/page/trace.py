"""A step in Chrome's trace format, which Perfetto and chrome://tracing open."""

from __future__ import annotations

from trainc.base.page.figures import Figures


def trace(figures: Figures) -> dict:
    """Times in microseconds. Kernels run one after another: one row a plan."""
    rows = {phase.name: i + 1 for i, phase in enumerate(figures.phases)}
    events: list[dict] = [{"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": figures.explanation.title}}]
    events += [{"ph": "M", "name": "thread_name", "pid": 1, "tid": row, "args": {"name": name}} for name, row in rows.items()]
    events += [
        {
            "ph": "X", "name": kernel.name, "cat": kernel.kind, "pid": 1, "tid": rows[kernel.phase],
            "ts": kernel.start * 1e6, "dur": kernel.seconds * 1e6,
            "args": {"lines": kernel.origins, "flops": kernel.flops, "bytes": kernel.bytes, "plan": kernel.plan},
        }
        for kernel in figures.kernels
        if kernel.seconds
    ]  # fmt: skip
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"timed": figures.timed}}
