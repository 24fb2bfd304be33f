"""Waits at a program's end until gloo's threads are at rest.

A thread of PyTorch's gloo backend tells that a collective is done first, and lets go of its tensors, and of the Python objects of
the thread that started it, afterwards. If the processor is taken from it in between, and the program ends meanwhile, it wants
Python's lock of an interpreter that ends: CPython (before 3.14) then ends the thread by unwinding it, which C++ answers with
"terminate called without an active exception", and the process is aborted after all its work was done (pytorch/pytorch#179291).
torchrun takes that for a rank that failed. The same happens without trainc; with it, the end of a program waits these
milliseconds.
"""

from __future__ import annotations

import atexit
import contextlib
import sys
import time
from pathlib import Path

NAME = "pt_gloo_runloop"  # what PyTorch calls them (ProcessGroupGloo.cpp; the kernel keeps 15 characters)
LOOKS = 3  # in a row that find no thread at work: one that waits for Python's lock has had it between two of them
PAUSE, LIMIT = 0.002, 5.0  # seconds: between two looks; after which the program ends all the same


def wait_for_rest() -> None:
    """Returns when no thread of gloo has work left that a processor could do now (a collective that other ranks do not come to
    is not waited for), or after `LIMIT` seconds. Nothing is waited for where there is no /proc."""
    if "torch.distributed.distributed_c10d" not in sys.modules:
        return
    end, rested = time.monotonic() + LIMIT, 0
    while rested < LOOKS and time.monotonic() < end:
        rested = 0 if any(map(_works, _threads())) else rested + 1
        if rested < LOOKS:
            time.sleep(PAUSE)


def _threads() -> list[Path]:
    found = []
    for thread in Path("/proc/self/task").glob("*"):
        with contextlib.suppress(OSError):  # it has ended
            if (thread / "comm").read_text().startswith(NAME):
                found.append(thread)
    return found


def _works(thread: Path) -> bool:
    with contextlib.suppress(OSError):
        return (thread / "stat").read_text().rpartition(")")[2].split()[0] != "S"
    return False


atexit.register(wait_for_rest)

__all__ = ["wait_for_rest"]
