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
from trainc.torch.compat import compile_lock

LOOK = 0.1  # seconds after which who waits looks whether the other waits for him
STUCK = 2.0  # seconds in one place after which the other does: on a busy machine it takes some tenths to start a thread


class _Trace:
    """What is being traced, and by whom."""

    def __init__(self, modules: Iterable[torch.nn.Module]):
        self.thread = threading.get_ident()
        self.modules = {id(module) for root in modules for module in root.modules()}
        self.others = {t.ident for t in threading.enumerate()}
        self.over = threading.Event()

    def concerns(self, module: torch.nn.Module) -> bool:
        """Whether the calling thread must wait before it calls `module`. A thread that the trace has started need not: the trace
        may wait for it."""
        me = threading.get_ident()
        return me != self.thread and id(module) in self.modules and me in self.others

    def wait(self) -> None:
        """Until it is over; or until it is seen to wait for another thread itself, which may be this one."""
        before, since = None, 0.0
        while not self.over.wait(LOOK):
            frame = sys._current_frames().get(self.thread)
            waits = frame is not None and frame.f_code.co_filename == threading.__file__
            now = (id(frame), frame.f_lasti) if waits else None
            if now is None or now != before:
                before, since = now, time.monotonic()
            elif time.monotonic() - since >= STUCK:
                return


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

        _traces.append(trace)
        try:
            with patched(*compat.MODULE_CALL, waiting):
                yield
        finally:
            _traces.remove(trace)
            trace.over.set()


def wait_for(root: torch.nn.Module) -> None:
    """Waits where another thread traces `root`."""
    for trace in list(_traces):
        if trace.concerns(root):
            trace.wait()


def mine(ours: Callable[..., Any], theirs: Callable[..., Any]) -> Callable[..., Any]:
    """`ours` in the thread that calls this, `theirs` in others: what a trace puts in the place of one of PyTorch's functions."""
    thread = threading.get_ident()

    def chosen(*args: Any, **kwargs: Any) -> Any:
        return (ours if threading.get_ident() == thread else theirs)(*args, **kwargs)

    return chosen


__all__ = ["alone", "mine", "wait_for"]
