"""Python's garbage collector around a trace (base/garbage.py)."""

import gc
import weakref

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


def test_what_somebody_froze_stays_frozen():
    gc.collect()
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        with uncollected():
            pass
        assert gc.get_freeze_count() == frozen > 0
    finally:
        gc.unfreeze()
