"""A step in Chrome's trace format, which Perfetto and chrome://tracing open."""

from __future__ import annotations

from trainc.base.page.figures import Figures
from trainc.base.page.phases import Kernel


def trace(figures: Figures) -> dict:
    """Times in microseconds after the first kernel. Who called has the plans, with their kernels inside; another thread has its
    parts of them."""
    events = [_named("process_name", 0, f"trainc: {figures.explanation.title}")]
    threads = figures.threads
    events += [_named("thread_name", thread, f"thread {i + 1}") for i, thread in enumerate(threads)]
    events += [{**_named("thread_sort_index", thread, ""), "args": {"sort_index": i}} for i, thread in enumerate(threads)]
    for phase in figures.phases:
        ran = [kernel for kernel in phase.kernels if kernel.seconds]
        if not ran:
            continue
        about = {"plan": phase.plan, "kernels": len(ran)}
        events.append(_event(phase.name, "plan", ran[0].thread, phase.start, phase.end - phase.start, about))
        for kernel in ran:
            events.append(_event(kernel.name, kernel.kind, kernel.thread, kernel.start, kernel.seconds, _about(kernel)))
            for part in kernel.parts:
                if part.thread != kernel.thread:
                    lines = {"lines": kernel.origins}
                    events.append(_event(kernel.name, "part", part.thread, part.start, part.seconds, lines))
        for number, flight in enumerate(phase.beside):
            about = {"lines": flight.origins, "operation": flight.operation, "waited": flight.waited}
            events += _arrow(flight.name, f"{phase.plan} {number}", flight.start, flight.seconds, about)
    told = {"timed": figures.timed, "one_step": figures.one_step}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": told}


def _about(kernel: Kernel) -> dict:
    return {"lines": kernel.origins, "flops": kernel.flops, "bytes": kernel.bytes, "plan": kernel.plan, "step": kernel.number}


def _named(what: str, thread: int, name: str) -> dict:
    return {"ph": "M", "name": what, "pid": 1, "tid": thread, "args": {"name": name}}


def _arrow(name: str, number: str, start: float, seconds: float, about: dict) -> list[dict]:
    """An asynchronous event: several may overlap, and no thread has them."""
    shared = {"name": name, "cat": "network", "id": number, "pid": 1, "tid": 0}
    begin, end = round(start * 1e9) / 1e3, round((start + seconds) * 1e9) / 1e3
    return [{**shared, "ph": "b", "ts": begin, "args": about}, {**shared, "ph": "e", "ts": end}]


def _event(name: str, kind: str, thread: int, start: float, seconds: float, about: dict) -> dict:
    """To the nanosecond, both ends rounded alike: so what lay within another still does."""
    begin, end = round(start * 1e9), round((start + seconds) * 1e9)
    return {
        "ph": "X", "name": name, "cat": kind, "pid": 1, "tid": thread, "ts": begin / 1e3, "dur": (end - begin) / 1e3,
        "args": about,
    }  # fmt: skip


__all__ = ["trace"]
