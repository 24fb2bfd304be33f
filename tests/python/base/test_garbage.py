"""Python's garbage collector around a trace (base/garbage.py)."""

import gc
import subprocess
import sys
import weakref

from trainc.base import garbage
from trainc.base.garbage import uncollected


class Node:
    pass


def _full_collections() -> int:
    return gc.get_stats()[2]["collections"]


def _grow_old() -> None:
    """Makes objects until the middle generation has been collected often enough that a full collection may follow."""
    before = gc.get_stats()[1]["collections"]
    while gc.get_stats()[1]["collections"] < before + 15:
        kept = [[] for _ in range(1000)]
    del kept


def test_what_a_trace_leaves_brings_no_full_collection():
    """One looks at all of the program's objects: 0.3 s with PyTorch, in the second step."""
    gc.collect()
    with uncollected():
        made = [[] for _ in range(len(gc.get_objects()))]  # as many as there are: more than the quarter that is asked for
    before = _full_collections()
    _grow_old()
    assert _full_collections() == before
    assert len(made) > 0


def test_garbage_of_a_trace_goes_at_once():
    with uncollected():
        node = Node()
        node.itself = node
        gone = weakref.ref(node)
        del node
        assert gone() is not None
    assert gone() is None


def _trace_that_leaves(objects: int) -> weakref.ref:
    """What dies by a full collection alone, once the trace is over."""
    with uncollected():
        node = Node()
        node.itself, node.much = node, [[] for _ in range(objects)]
    return weakref.ref(node)


def test_what_many_traces_leave_is_collected_before_a_further_one():
    gc.collect()
    many = [_trace_that_leaves(garbage.MOST_LEFT // 10) for _ in range(9)]
    assert all(each() is not None for each in many)
    last = _trace_that_leaves(garbage.MOST_LEFT // 10)
    assert all(each() is not None for each in (*many, last))
    with uncollected():
        pass
    assert all(each() is None for each in (*many, last))


SWEEP = """
import torch, trainc
from trainc.base import garbage

garbage.MOST_GROWN >>= 3

def train(width):
    model = torch.nn.Sequential(torch.nn.Linear(width, 1 << 15, bias=False), torch.nn.Tanh(), torch.nn.Linear(1 << 15, 1))
    compiled = trainc.compile(model)
    compiled(torch.ones(2, width)).sum().backward()
    return compiled

def resident():
    return int(open("/proc/self/statm").read().split()[1]) << 12

train(1)
before = resident()
for i in range(8):
    train(128 + i)  # 32 MB with its gradients
print((resident() - before) >> 20)
"""


def test_a_sweep_over_models_keeps_two_of_them_at_most():
    done = subprocess.run([sys.executable, "-c", SWEEP], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 150  # MB; 8 models are 256


def _is_frozen(what: object) -> bool:
    """Whether the collector's generations lack it. Their number alone tells nothing: what is frozen may die meanwhile."""
    return not any(each is what for each in gc.get_objects())


def test_what_somebody_froze_stays_frozen():
    node = Node()
    gc.collect()
    assert not _is_frozen(node)
    gc.freeze()
    try:
        with uncollected():
            pass
        assert _is_frozen(node)
    finally:
        gc.unfreeze()
