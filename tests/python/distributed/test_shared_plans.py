"""Plans that come through a group's store: one process makes each, and nobody waits for one that is gone. (With real ranks:
test_models.py.)"""

import subprocess
import sys
import threading
import time

import pytest
import torch

from trainc.base import cache, config
from trainc.torch.doors import agreement, shared_plans
from trainc.torch.doors.shared_plans import OfGroup

NAME = "ab" * 32


@pytest.fixture
def two(monkeypatch):
    """Two ranks of one group."""
    store = torch.distributed.HashStore()
    monkeypatch.setattr(agreement, "LOOK", 0.05)

    def rank():
        made = OfGroup.__new__(OfGroup)
        made._store, made._size, made._bound = store, 2, 5.0
        return made

    return rank(), rank()


def test_the_second_waits_for_the_first(two):
    first, second = two
    assert first.given(NAME) is None
    content = bytes(range(256)) * 9
    threading.Timer(0.3, first.give, (NAME, content)).start()
    start = time.monotonic()
    assert second.given(NAME) == content and 0.2 < time.monotonic() - start < 3


@pytest.mark.parametrize("content", [None, bytes(100)], ids=["failed", "too large"])
def test_what_is_not_given_is_made_again(two, content, monkeypatch):
    monkeypatch.setattr(shared_plans, "MOST", 99)
    first, second = two
    assert first.given(NAME) is None
    first.give(NAME, content)
    assert second.given(NAME) is None


def test_a_rank_that_has_died_is_not_waited_for(two, monkeypatch):
    first, second = two
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    monkeypatch.setattr(shared_plans.os, "getpid", lambda: gone.pid)
    assert first.given(NAME) is None
    monkeypatch.undo()
    start = time.monotonic()
    assert second.given(NAME) is None and time.monotonic() - start < 3


def test_a_rank_that_does_not_come_to_its_end_is_waited_for_so_long(two):
    first, second = two
    second._bound = 0.3
    assert first.given(NAME) is None
    start = time.monotonic()
    assert second.given(NAME) is None and 0.25 < time.monotonic() - start < 3


def test_the_cache_asks_the_others_and_tells_them(two, monkeypatch, tmp_path):
    """Each has a directory of its own; what was given is stored there, and what is damaged is made again."""
    monkeypatch.setattr(config, "cache", True)
    calls, load = [], lambda about, blob: (about["a"], blob)

    def through(rank, compile=lambda: calls.append(1) or (1, b"plan")):
        monkeypatch.setattr(config, "cache_dir", str(tmp_path / str(rank)))
        monkeypatch.setattr(cache, "peers", lambda: None if rank is None else two[rank])
        assert cache.directory() is not None
        return cache.through(NAME, load, compile, lambda made: ({"a": made[0]}, made[1]))

    first, second = through(0), through(1)
    assert first == second and first[0] == (1, b"plan") and len(calls) == 1
    assert cache._loaded(NAME, load) == first and through(1) == first and len(calls) == 1
    two[0]._store.set(f"{NAME}/is", "no plan")
    cache.clear()
    with pytest.warns(UserWarning, match="a plan that another rank has compiled is not used"):
        assert through(1) == first and len(calls) == 2


def test_a_compilation_that_fails_lets_the_others_go_on(two, monkeypatch, tmp_path):
    monkeypatch.setattr(config, "cache", True)
    monkeypatch.setattr(config, "cache_dir", str(tmp_path))
    monkeypatch.setattr(cache, "peers", lambda: two[0])
    assert cache.directory() is not None

    def fail():
        raise MemoryError

    with pytest.raises(MemoryError):
        cache.through(NAME, lambda *_: None, fail, lambda _: ({}, b""))
    start = time.monotonic()
    assert two[1].given(NAME) is None and time.monotonic() - start < 3
