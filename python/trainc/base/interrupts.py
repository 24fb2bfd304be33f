"""Ctrl-C waits while a plan writes the program's tensors: an update that is half done, or that nobody has counted, is no state
that training can go on from. A step is short; what was asked for comes right after it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

try:  # what `signal`'s own functions call; they make enumerations' members of all that goes in and out, at each step
    from _signal import getsignal
    from _signal import signal as handle
except ImportError:
    from signal import getsignal
    from signal import signal as handle

# Signals by which programs end or stop what runs: by Python's own handlers, or their own.
_NAMES = "SIGINT", "SIGTERM", "SIGALRM", "SIGHUP", "SIGUSR1", "SIGUSR2"
_SIGNALS = tuple(int(getattr(signal, name)) for name in _NAMES if hasattr(signal, name))


class held:
    """With this entered, handlers written in Python run when it is left. (Python runs them in the main thread alone: elsewhere
    there is nothing to hold.)"""

    def __enter__(self) -> None:
        self._before: dict[int, Callable[..., Any]] = {}
        self._came: list[tuple[int, Any]] = []
        if threading.current_thread() is not threading.main_thread():
            return
        try:
            for number in _SIGNALS:
                handler = getsignal(number)
                if callable(handler):
                    self._before[number] = handler
                    handle(number, lambda number, frame: self._came.append((number, frame)))
        except BaseException:  # of a handler that was not replaced yet
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        try:
            while self._before:
                number, handler = next(iter(self._before.items()))
                handle(number, handler)  # raises what its handler raises, where the signal comes right now
                del self._before[number]
                self._call(number, handler)
        finally:
            if self._before:
                self.__exit__()

    def _call(self, number: int, handler: Callable[..., Any]) -> None:
        came = [frame for which, frame in self._came if which == number]
        if came:
            handler(number, came[-1])


__all__ = ["held"]
