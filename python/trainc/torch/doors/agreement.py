"""Whether the ranks of a DistributedDataParallel train the same program: they tell each other once, over their group's store.

A parameter that gets a gradient on some ranks alone is a step that never ends: the others wait for it in an all-reduce. A plan
knows its parameters and its operations before it runs, so the ranks compare them where the first backward that reduces begins.
There all ranks come, or DDP itself would wait for them; a forward that one rank does alone waits for nobody.

What a rank tells has no sizes: batches of different lengths are the same program. Who does not come within `BOUND`, or half of
the group's timeout, is waited for no longer: the all-reduce fails where a rank is gone, and after that timeout.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import datetime
import hashlib
import json
import time
import weakref
import zlib
from collections.abc import Callable
from typing import Any

import torch

from trainc.base import messages
from trainc.base.errors import UserError
from trainc.torch import compat

BOUND = 60.0  # seconds
LOOK = 0.5  # seconds after which who waits looks at signals; longer where many would ask the store so often
LOOKS = 2000  # such looks a second of all ranks together
HEARD = 8  # ranks that tell of something else are looked at; more would say no more
KINDS = ("gradients", "operations")

_asked: weakref.WeakSet[Any] = weakref.WeakSet()  # wrappers whose ranks have told each other
_count: dict[str, int] = {}  # by group and parameters: how many such wrappers did


@dataclasses.dataclass
class Told:
    """What a rank is about to train: which parameters get a gradient, and its operations as (operator, the user's line).
    None where that is not known: PyTorch runs it."""

    gradients: list[str] | None = None
    operations: list[list[str]] | None = None

    def packed(self) -> str:
        return base64.b85encode(zlib.compress(json.dumps(dataclasses.astuple(self)).encode())).decode()

    def digests(self) -> list[str | None]:
        """Of the parameters that get a gradient, and of the operations, without their lines."""
        if self.gradients is None:
            return [None, None]
        return [_digest(self.gradients), _digest([operator for operator, _ in self.operations])]

    @staticmethod
    def of(text: bytes) -> Told:
        return Told(*json.loads(zlib.decompress(base64.b85decode(text))))


def told(record: Any, names: dict[int, str]) -> Told:
    """Of a compilation, or None; `names`: of the model's parameters, by their places among the graph's inputs."""
    graph = None if record is None else getattr(record.forward, "graph", None)
    if graph is None or record.gradients is None:
        return Told()
    nodes = json.loads(graph.canonical)["nodes"]
    origins = [*graph.origins, ""]
    operations = [[node["target"], origins[int(node["origin"][1:] or -1)]] for node in nodes if node["op"] == "call"]
    return Told([names[i] for i in record.gradients if i in names], operations)


def is_due(wrapper: Any) -> bool:
    """Whether a backward of this call may be the first that reduces."""
    return (
        wrapper not in _asked and torch.is_grad_enabled() and wrapper.require_backward_grad_sync
        and torch.distributed.get_world_size(wrapper.process_group) > 1 and not compat.is_joinable_now(wrapper)
    )  # fmt: skip


def before_backward(wrapper: Any, result: Any, mine: Callable[[], Told]) -> None:
    """The ranks compare when the backward of `result` begins."""

    def compare(_gradients: Any) -> None:
        if wrapper not in _asked:
            _asked.add(wrapper)
            _compare(wrapper, mine())

    leaves = compat.pytree.tree_leaves(result)
    # On the node, which goes with the graph: a hook on a result would say that somebody wants that result's gradient.
    for node in {leaf.grad_fn for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.grad_fn is not None}:
        node.register_prehook(compare)


def _compare(wrapper: Any, mine: Told) -> None:
    """UserError on every rank, the same, where they would wait for one another; a warning where they do other things."""
    group = wrapper.process_group
    shapes = [(name, list(p.shape)) for name, p in wrapper.module.named_parameters()]
    name = f"{compat.group_name(group)}/{_digest(shapes)}"
    number = _count[name] = _count.get(name, 0) + 1
    store = torch.distributed.PrefixStore(f"trainc/{name}/{number}", compat.group_store(group))
    told = Told() if wrapper.find_unused_parameters else mine
    error, difference = exchange(
        store, torch.distributed.get_rank(group), torch.distributed.get_world_size(group), told, bound_of(group)
    )
    if error:
        raise UserError(error)
    if difference:
        messages.warn(difference)


def exchange(store: Any, rank: int, size: int, mine: Told, bound: float) -> tuple[str, str]:
    """(an error, a warning), the same on all ranks; empty where there is none.

    The first rank tells its digests, the others count themselves, and only who differs tells what it does. So a rank writes some
    bytes and asks a few times, and the first one asks no oftener for many ranks than for few (docs/distributed.md has the sum).
    """
    until = time.monotonic() + bound
    if rank == 0:
        store.set("first", json.dumps(mine.digests()))
        came(store, "all", until, size)
        verdict = _verdict(mine, store)
        store.set("verdict", json.dumps(verdict))
        return verdict
    if not came(store, "first", until, size):
        return "", ""
    digests = mine.digests()
    for kind, own, first in zip(KINDS, digests, json.loads(store.get("first")), strict=True):
        if own is not None and first is not None and own != first:
            store.set(f"{kind}/{store.add(kind, 1)}", f"{rank} {mine.packed()}")
            break  # who has other gradients has other operations, too
    if store.add("came", 1) == size - 1:
        store.set("all", "")
    if not came(store, "verdict", time.monotonic() + 1.5 * bound, size):  # the first rank may wait for others
        return "", ""
    error, difference = json.loads(store.get("verdict"))
    return error, difference


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def bound_of(group: Any) -> float:
    """Seconds that a rank waits for the others' word."""
    return min(BOUND, compat.group_timeout(group).total_seconds() / 2)


def came(store: Any, key: str, until: float, size: int) -> bool:
    """Whether a key is in the store by then; asked once at least. `size`: how many may wait."""
    while not store.check([key]):
        with contextlib.suppress(torch.distributed.DistError, RuntimeError):  # it has not come yet
            store.wait([key], datetime.timedelta(seconds=max(LOOK, size / LOOKS)))
        if time.monotonic() > until and not store.check([key]):
            return False
    return True


def _verdict(mine: Told, store: Any) -> tuple[str, str]:
    """(an error, a warning) of the first rank, among the first that told of something else."""
    gradients, operations = (_told_by(store, kind) for kind in KINDS)
    for rank, its in gradients:
        alone = [set(mine.gradients) - set(its.gradients), set(its.gradients) - set(mine.gradients)]
        if any(alone):
            sides = [(0, rank), (rank, 0)]
            said = [
                f"{_named(names)} on rank {here} and not on rank {there}"
                for names, (here, there) in zip(alone, sides, strict=True) if names
            ]  # fmt: skip
            return (
                "the ranks of a DistributedDataParallel train different models, and would wait for each other: a gradient comes "
                f"to {'; to '.join(said)}. If that is meant, DistributedDataParallel(..., find_unused_parameters=True) allows it."
            ), ""
    return "", next(filter(None, (_of_operations(mine.operations, its.operations, rank) for rank, its in operations)), "")


def _told_by(store: Any, kind: str) -> list[tuple[int, Told]]:
    """(rank, what it told) of the first that did, by their ranks."""
    keys = [f"{kind}/{n + 1}" for n in range(min(store.add(kind, 0), HEARD))]
    texts = [store.get(key).split(b" ", 1) for key in keys if store.check([key])]
    return sorted(((int(rank), Told.of(packed)) for rank, packed in texts), key=lambda told: told[0])


def _named(names: set[str]) -> str:
    first = [f"`{name}`" for name in sorted(names)[:3]]
    return ", ".join(first) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _of_operations(mine: list[list[str]], its: list[list[str]], rank: int) -> str:
    """The first operation in which two programs differ; lines alone are no difference, as ranks may lie in different files."""
    place = next((i for i, (a, b) in enumerate(zip(mine, its, strict=False)) if a[0] != b[0]), min(len(mine), len(its)))
    if len(mine) == len(its) == place:
        return ""
    here, there = (" at ".join(filter(None, ops[place])) if place < len(ops) else "nothing more" for ops in (mine, its))
    return (
        f"the ranks of a DistributedDataParallel train different programs: rank 0 does {here}, rank {rank} does {there}. Their "
        "gradients are averaged all the same."
    )


__all__ = ["Told", "before_backward", "bound_of", "came", "exchange", "is_due", "told"]
