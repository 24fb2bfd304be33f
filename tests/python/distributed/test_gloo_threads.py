"""A program does not end while a thread of gloo has work left (torch/run/gloo_threads.py)."""

import hashlib
import os
import threading
import time

import pytest
import torch.distributed.distributed_c10d  # noqa: F401  # nothing is waited for in a program that has not imported it

from trainc.torch.run import gloo_threads

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="the threads' states are read from /proc")


def at_work(name, until=None):
    """A thread of that name that works without Python's lock, as gloo's do, and the time when it ended: when `until` is set, or
    after 20 seconds; without it, after some tenths of one."""
    started, ended = threading.Event(), []

    def work():
        with open(f"/proc/self/task/{threading.get_native_id()}/comm", "w") as file:
            file.write(name)
        started.set()
        end = time.monotonic() + 20
        hashlib.pbkdf2_hmac("sha256", b"", b"", 500_000)
        while until is not None and not until.is_set() and time.monotonic() < end:
            hashlib.pbkdf2_hmac("sha256", b"", b"", 500_000)
        ended.append(time.monotonic())

    thread = threading.Thread(target=work)
    thread.start()
    started.wait()
    return thread, ended


def test_the_end_waits_for_work_that_is_left():
    thread, ended = at_work(gloo_threads.NAME)
    assert not ended
    gloo_threads.wait_for_rest()
    assert ended
    thread.join()


def test_but_for_no_other_thread_and_not_for_ever(monkeypatch):
    monkeypatch.setattr(gloo_threads, "LIMIT", 0.01)
    for name in (gloo_threads.NAME, "another"):
        thread, ended = at_work(name, until := threading.Event())
        gloo_threads.wait_for_rest()
        assert not ended
        until.set()
        thread.join()
        monkeypatch.undo()
