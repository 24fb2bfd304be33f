"""One trace at a time, and threads that wait for it.

While a model is traced its modules hold other tensors than their own, and parts of PyTorch are replaced. So traces of this
process go one after the other (Dynamo's, too: the lock is its own), and another thread that calls a module that is being traced
waits until it holds its own tensors again.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from trainc.base.patches import patched
from trainc.torch import compat
from trainc.torch.capture import generator
from trainc.torch.compat import compile_lock

LOOK = 0.1  # seconds after which who waits looks whether the other waits for him
STUCK = 2.0  # seconds in one place after which the other does: on a busy machine it takes some tenths to start a thread


class _Trace:
    """What is being traced, and by whom."""

    def __init__(self, modules: Iterable[torch.nn.Module]):
        self.thread = threading.get_ident()
        self.modules = {id(module) for root in modules for module in root.modules()}
        self.own: set[threading.Thread] = set()  # threads that it started, or that such a thread did
        self.over = threading.Event()

    def concerns(self, module: torch.nn.Module) -> bool:
        """Whether the calling thread must wait before it calls `module`. A thread that the trace has started need not: the trace
        may wait for it."""
        return id(module) in self.modules and not self.is_mine()

    def is_mine(self) -> bool:
        """Whether the calling thread is that of the trace, or one that it has started."""
        return threading.get_ident() == self.thread or threading.current_thread() in self.own

    def wait(self) -> bool:
        """Until it is over; or until it is seen to wait for another thread itself, which may be this one. Whether it is over."""
        before, since = None, 0.0
        while not self.over.wait(LOOK):
            frame = sys._current_frames().get(self.thread)
            waits = frame is not None and frame.f_code.co_filename == threading.__file__
            now = (id(frame), frame.f_lasti) if waits else None
            if now is None or now != before:
                before, since = now, time.monotonic()
            elif time.monotonic() - since >= STUCK:
                return False
        return True


_traces: list[_Trace] = []  # that go on, one within the other


@contextlib.contextmanager
def alone(*roots: torch.nn.Module) -> Iterator[None]:
    """A trace of `roots`, which no other thread calls meanwhile."""
    with compile_lock:
        trace = _Trace(roots)
        call = compat.MODULE_CALL.original()  # which make_fx, unlike __call__, leaves as it is

        def waiting(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if trace.concerns(self):
                trace.wait()
            return call(self, *args, **kwargs)

        start = threading.Thread.start

        def started(self: threading.Thread) -> None:
            if trace.is_mine():
                trace.own.add(self)
            start(self)

        _traces.append(trace)
        try:
            with (
                patched(*compat.MODULE_CALL, waiting),
                patched(threading.Thread, "start", started),
                generator.watched(trace.is_mine),
            ):
                yield
        finally:
            _traces.remove(trace)
            trace.over.set()


def wait_for(root: torch.nn.Module) -> None:
    """Waits where another thread traces `root`; again, where it traces it anew."""
    while trace := next((trace for trace in list(_traces) if trace.concerns(root)), None):
        if not trace.wait():
            return


def is_tracing() -> bool:
    """Whether a trace of ours goes on in the calling thread."""
    return any(trace.is_mine() for trace in list(_traces))


def is_compiling() -> bool:
    """torch.compiler.is_compiling() of the calling thread: a trace of ours in another one says so to all."""
    return torch.compiler.is_compiling() and not _others_trace()


def is_anomaly_enabled() -> bool:
    """torch.is_anomaly_enabled() of the calling thread, likewise."""
    return torch.is_anomaly_enabled() and not _others_trace()


def _others_trace() -> bool:
    """Whether traces go on, all of them other threads'."""
    traces = list(_traces)
    return bool(traces) and not any(trace.is_mine() for trace in traces)


def mine(ours: Callable[..., Any], theirs: Callable[..., Any]) -> Callable[..., Any]:
    """`ours` in the thread that calls this, `theirs` in others: what a trace puts in the place of one of PyTorch's functions."""
    thread = threading.get_ident()

    def chosen(*args: Any, **kwargs: Any) -> Any:
        return (ours if threading.get_ident() == thread else theirs)(*args, **kwargs)

    return chosen


__all__ = ["alone", "is_anomaly_enabled", "is_compiling", "mine", "wait_for"]
