"""How a command of trainc's own ends: as commands of a shell do, with a line and no traceback. (A program that `trainc run` runs
ends as Python ends it: script.py.)"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any, NoReturn

from trainc.base.errors import UserError


class _Asked(BaseException):
    """A signal asks the process to end; what is under way is left as by any exception: children end, temporary files go."""

    def __init__(self, number: int, _frame: Any = None):
        self.number = number


@contextlib.contextmanager
def ending(command: str) -> Iterator[None]:
    """Around what a command does."""
    try:
        with _signals():
            yield
            if sys.stdout is not None:
                sys.stdout.flush()
    except UserError as error:
        raise SystemExit(_told(command, str(error), 2)) from None
    except BrokenPipeError:  # whoever read the answer has seen enough; Python is not to fail when it flushes, either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except OSError as error:
        raise SystemExit(_told(command, f"{error.filename or 'its answer cannot be written'}: {error.strerror}", 1)) from None
    except _Asked as asked:
        signal.signal(asked.number, signal.SIG_DFL)
        os.kill(os.getpid(), asked.number)


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """Meanwhile what ends a process raises _Asked."""

    def ask(number: int, frame: Any) -> None:
        raise _Asked(number)

    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                before[number] = signal.signal(number, ask)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def leave(status: int) -> NoReturn:
    """Ends the process at once, from whichever thread; what was written is shown first."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(status)


def answer(text: str) -> None:
    """To stdout, whatever characters it can show."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    print(text)


def _told(command: str, text: str, status: int) -> int:
    print(f"trainc {command}: {text.removeprefix(f'trainc {command}: ')}", file=sys.stderr)
    return status


__all__ = ["answer", "ending", "leave"]
