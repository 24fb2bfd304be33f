"""What ranks tell each other of their programs costs, and says the same to all: many ranks as threads over one store."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from trainc.torch.doors import agreement
from trainc.torch.doors.agreement import Told, exchange

RANKS = 48
OPERATIONS = [["aten.mm.default", f"model.py:{i}"] for i in range(500)]
SAME = Told([f"layers.{i}.weight" for i in range(100)], OPERATIONS)
LINES = Told(SAME.gradients, [[operator, f"elsewhere/{line}"] for operator, line in OPERATIONS])
OTHER = Told(SAME.gradients, [*OPERATIONS[:7], ["aten.tanh.default", "model.py:7"], *OPERATIONS[8:]])
FEWER = Told(SAME.gradients[1:], OPERATIONS[1:])


class Counted:
    """A store that counts what it is asked and what it is given."""

    def __init__(self):
        self._store, self._lock, self.asked, self.bytes = torch.distributed.HashStore(), threading.Lock(), 0, 0

    def __getattr__(self, name):
        def asked(*args):
            with self._lock:
                self.asked += 1
                self.bytes += sum(len(a) for a in args if isinstance(a, str)) if name == "set" else 0
            return getattr(self._store, name)(*args)

        return asked


def exchanged(programs, bound=20.0):
    """What each rank is told, and the store."""
    store = Counted()
    with ThreadPoolExecutor(len(programs)) as pool:
        found = [pool.submit(exchange, store, rank, len(programs), own, bound) for rank, own in enumerate(programs) if own]
        return [each.result() for each in found], store


def test_ranks_that_agree_tell_little():
    found, store = exchanged([SAME] * RANKS)
    assert set(found) == {("", "")}
    assert store.bytes < 400 and store.asked < 12 * RANKS


def test_other_lines_are_no_difference():
    found, store = exchanged([SAME, *[LINES] * (RANKS - 1)])
    assert set(found) == {("", "")} and store.bytes < 400


def test_what_pytorch_runs_on_some_ranks_is_not_spoken_of():
    assert set(exchanged([SAME, Told(), SAME])[0]) == {("", "")} == set(exchanged([Told(), SAME, OTHER])[0])


def test_one_that_waits_for_a_gradient_is_found_among_many_others():
    """Many ranks do other operations; one of them makes no gradient of a parameter."""
    programs = [SAME, *[OTHER] * (RANKS - 1)]
    (verdict,) = set(exchanged(programs)[0])
    assert verdict[0] == "" and "rank 0 does aten.mm.default at model.py:7, rank" in verdict[1]
    programs[30] = FEWER
    (verdict,) = set(exchanged(programs)[0])
    assert "`layers.0.weight` on rank 0 and not on rank 30" in verdict[0] and verdict[1] == ""


@pytest.mark.parametrize("absent", [0, 2])
def test_a_rank_that_does_not_come_is_waited_for_no_longer_than_that(absent, monkeypatch):
    monkeypatch.setattr(agreement, "LOOK", 0.05)
    programs = [SAME, OTHER, SAME, SAME]
    programs[absent] = None
    found, _ = exchanged(programs, bound=0.3)
    assert len(found) == 3 and len(set(found)) == 1
    assert ("aten.tanh" in found[0][1]) == (absent != 0)
