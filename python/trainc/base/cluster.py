"""What a training step will take on more ranks than there are: a step that was measured on one rank, played through event by
event on a model of the network (network.py), for DistributedDataParallel and for FSDP2.

Each rank has work of the same size, as when ranks are added and not shared out: efficiency is the share of N times one rank's
throughput. What ranks wait for the slowest of them is not in it; `slowest` estimates that.

Sources: Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", 2020 (buckets, their order,
reduction behind the backward); Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 2020
(what sharding leaves on a rank); Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel", 2023 (gathers
one unit ahead).
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from trainc.base.errors import UserError
from trainc.base.network import Network

FIRST_BUCKET = 1 << 20  # bytes: DDP's own numbers
BUCKET = 25 << 20
NOT_SHARDED = ("batch", "saved", "temporary", "results", "process")  # of what memory is for


@dataclasses.dataclass(frozen=True)
class Gradient:
    """Of one parameter. `ready`: seconds from the beginning of the step; `unit`: what FSDP2 would shard together with it."""

    name: str
    bytes: int
    ready: float
    unit: str = ""


@dataclasses.dataclass(frozen=True)
class Workload:
    """One rank's step. Seconds: `forward` until the backward begins, `backward`, `update` the rest. `gradients` in the order of
    the model's parameters. `copy`: seconds a byte of what DDP copies to and from its buckets; 0 where the step has it within."""

    title: str
    device: str
    forward: float
    backward: float
    update: float
    gradients: list[Gradient]
    memory: dict[str, int]  # bytes, by what they are for
    copy: float = 0.0
    buffers: int = 0  # bytes, which DDP makes the first rank's before each forward
    spread: float = 0.0  # standard deviation of a step, in seconds
    threads: int = 1  # of a rank that compute
    cores: int = 0  # of the machine, where ranks on it share them; 0: they do not
    notes: list[str] = dataclasses.field(default_factory=list)

    @property
    def step(self) -> float:
        return self.forward + self.backward + self.update

    @property
    def bytes(self) -> int:
        return sum(g.bytes for g in self.gradients)

    def crowded(self, ranks: int) -> Workload:
        """The same where so many ranks of one machine share its cores: more threads than cores take turns. (While one rank waits
        for the network another has its core, so this is the longest that it takes.)"""
        threads = ranks * min(self.threads, self.cores)  # one rank was measured with what it has
        if threads <= self.cores:
            return self
        factor = threads / self.cores
        parts = {name: factor * getattr(self, name) for name in ("forward", "backward", "update", "copy", "spread")}
        gradients = [dataclasses.replace(g, ready=factor * g.ready) for g in self.gradients]
        return dataclasses.replace(self, **parts, gradients=gradients)

    @classmethod
    def of(cls, told: dict[str, Any]) -> Workload:
        return cls(**{**told, "gradients": [Gradient(**g) for g in told["gradients"]]})


@dataclasses.dataclass(frozen=True)
class Span:
    """Something that takes time: `lane` is "compute" or "network"."""

    lane: str
    name: str
    start: float
    end: float


@dataclasses.dataclass(frozen=True)
class Prediction:
    way: str  # "DDP" | "FSDP2"
    ranks: int
    step: float  # seconds
    communication: float  # seconds that the network works
    exposed: float  # seconds that a step takes longer for it
    memory: int  # bytes a rank
    efficiency: float
    algorithm: str
    spans: list[Span]

    def as_dict(self) -> dict[str, Any]:
        told = dataclasses.asdict(self)
        del told["spans"]
        return told


def plan(work: Workload, network: Network, ranks: Iterable[int], ways: Sequence[str] = ("DDP", "FSDP2")) -> list[Prediction]:
    one = {"DDP": replicated, "FSDP2": sharded}
    found = []
    for way in ways:
        for n in ranks:
            crowded = work.crowded(min(n, network.node))
            told = one[way](crowded, network, n)
            found.append(dataclasses.replace(told, efficiency=told.efficiency * work.step / crowded.step))
    return found


# ---- DistributedDataParallel --------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Bucket:
    bytes: int
    ready: float  # when its last gradient is there


def buckets(gradients: Sequence[Gradient], cap: int = BUCKET, first: int = FIRST_BUCKET) -> list[Bucket]:
    """DDP's: parameters from the last to the first, a bucket closed as soon as it has so many bytes."""
    found: list[Bucket] = []
    size, ready, limit = 0, 0.0, first
    for gradient in reversed(gradients):
        size, ready = size + gradient.bytes, max(ready, gradient.ready)
        if size >= limit:
            found.append(Bucket(size, ready))
            size, ready, limit = 0, 0.0, cap
    if size:
        found.append(Bucket(size, ready))
    return found


def replicated(work: Workload, network: Network, ranks: int, cap: int = BUCKET) -> Prediction:
    """Buffers are broadcast before the forward. Buckets are reduced one after the other and in their order, each once its
    gradients are there (Li et al., 3.2). A bucket is filled by the thread that computes, which its copy holds up."""
    parts = buckets(work.gradients, cap, min(cap, FIRST_BUCKET)) if ranks > 1 else []
    sync = network.broadcast(work.buffers, ranks)
    forward = sync + work.forward
    computed, total, used = forward + work.backward, sync, set()
    spans = [Span("network", "buffers", 0.0, sync)] if sync else []
    copied, free = 0.0, sync
    for i, bucket in enumerate(parts):
        copied += bucket.bytes * work.copy
        seconds, algorithm = network.all_reduce(bucket.bytes, ranks)
        start = max(sync + bucket.ready + copied, free)
        free = start + seconds
        spans.append(Span("network", f"bucket {i + 1}", start, free))
        total += seconds
        used.add(algorithm)
    computed += copied
    back = copied  # out of the buckets again, after the last
    end = max(computed, free)
    spans = [
        Span("compute", "forward", sync, forward), Span("compute", "backward", forward, computed), *spans,
        Span("compute", "update", end, end + back + work.update),
    ]  # fmt: skip
    step = end + back + work.update if parts else work.step
    memory = sum(work.memory.values()) + (work.bytes if parts else 0)  # the buckets
    return _prediction("DDP", work, ranks, step, total, step - work.step, memory, used, spans)


# ---- FSDP2 ------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Unit:
    """What `fully_shard` takes together: a layer of a list, or the rest of the model (the root, which is gathered first and stays
    so until the backward ends)."""

    name: str
    bytes: int = 0
    backward: float = 0.0
    forward: float = 0.0


def units(work: Workload) -> list[Unit]:
    """In the order of the forward, the root first. The backward's time between two gradients is that of the later one (of several
    at once: by their bytes); the forward's is shared out as the backward's."""
    found: dict[str, Unit] = {"": Unit("")}
    for gradient in work.gradients:
        found.setdefault(gradient.unit, Unit(gradient.unit)).bytes += gradient.bytes
    clock = work.forward
    for ready in sorted({g.ready for g in work.gradients}):
        together = [g for g in work.gradients if g.ready == ready]
        seconds, size = max(ready - clock, 0.0), sum(g.bytes for g in together)
        for gradient in together:
            found[gradient.unit].backward += seconds * (gradient.bytes / size if size else 1 / len(together))
        clock = max(clock, ready)
    found[""].backward += max(work.forward + work.backward - clock, 0.0)
    for unit in found.values():
        unit.forward = work.forward * unit.backward / work.backward if work.backward else 0.0
    return list(found.values())


class _Step:
    """Two lanes; what is put on one begins when the lane is free and `after` has passed."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.free = {"compute": 0.0, "network": 0.0}

    def put(self, lane: str, name: str, seconds: float, after: float = 0.0) -> float:
        """When it is over."""
        start = max(self.free[lane], after)
        self.free[lane] = start + seconds
        if seconds:
            self.spans.append(Span(lane, name, start, self.free[lane]))
        return self.free[lane]


def sharded(work: Workload, network: Network, ranks: int) -> Prediction:
    """Each unit is gathered before its forward and again before its backward, its gradients are scattered after; the next unit is
    gathered while one computes (Zhao et al., 3.3). On a CPU PyTorch waits for each collective where it is called."""
    root, *layers = units(work)
    waits = work.device == "cpu"
    step, gather, scatter = _Step(), "gather", "scatter"

    def moved(kind: str, unit: Unit, after: float = 0.0) -> float:
        end = step.put("network", f"{kind} {unit.name or 'the rest'}", network.gather(unit.bytes, ranks), after)
        if waits:
            step.free["compute"] = max(step.free["compute"], end)
        return end

    def computed(kind: str, unit: Unit, seconds: float, after: float) -> float:
        end = step.put("compute", f"{kind} {unit.name or 'the rest'}", seconds, after)
        if waits:
            step.free["network"] = max(step.free["network"], end)
        return end

    def through(order: Sequence[Unit], kind: str) -> None:
        """While a unit computes the next is gathered, and no other: two are in memory at most."""
        is_back = kind == "backward"
        there = moved(gather, order[0], step.free["compute"]) if order else 0.0
        for i, unit in enumerate(order):
            begin = max(step.free["compute"], there)
            coming = moved(gather, order[i + 1], begin) if i + 1 < len(order) and not waits else 0.0
            end = computed(kind, unit, unit.backward if is_back else unit.forward, there)
            if is_back:
                moved(scatter, unit, end)
            if i + 1 < len(order):
                there = coming if not waits else moved(gather, order[i + 1], end)

    there = moved(gather, root)
    computed("forward", root, root.forward, there)
    through(layers, "forward")
    computed("backward", root, root.backward, 0.0)
    through(layers[::-1], "backward")
    moved(scatter, root, step.free["compute"])
    begin = max(step.free.values())
    end = step.put("compute", "update", work.update / ranks, begin)
    network_seconds = sum(span.end - span.start for span in step.spans if span.lane == "network")
    alone = work.forward + work.backward + work.update / ranks
    if ranks == 1:
        end = alone = work.step
    memory, used = _sharded_memory(work, root, layers, ranks), {"gather, scatter"} if ranks > 1 else set()
    return _prediction("FSDP2", work, ranks, end, network_seconds, end - alone, memory, used, step.spans)


def _sharded_memory(work: Workload, root: Unit, layers: Sequence[Unit], ranks: int) -> int:
    """Shards of parameters, gradients and state (Rajbhandari et al., stage 3), what the step itself needs, and what is gathered:
    the rest of the model, two layers, and the largest layer's gradients before and while they are scattered."""
    whole = sum(work.memory.get(name, 0) for name in NOT_SHARDED)
    parts = sum(size for name, size in work.memory.items() if name not in NOT_SHARDED)
    if ranks == 1:
        return whole + parts
    sizes = sorted((unit.bytes for unit in layers), reverse=True)
    gathered = root.bytes + sum(sizes[:2]) + 2 * max([root.bytes, *sizes[:1]])
    return whole + -(-parts // ranks) + gathered


def _prediction(
    way: str, work: Workload, ranks: int, step: float, network: float, exposed: float, memory: int, used: set[str],
    spans: list[Span],
) -> Prediction:  # fmt: skip
    """A sharded update can make a step shorter than one rank's: that is no efficiency beyond 1."""
    efficiency = min(work.step / step, 1.0) if step else 1.0
    return Prediction(way, ranks, step, network, max(exposed, 0.0), memory, efficiency, "+".join(sorted(used)) or "none", spans)


# ---- beside the model of the network ------------------------------------------------------------------------------------------


def slowest(spread: float, ranks: int) -> float:
    """Seconds by which the slowest of so many ranks is later than the mean, if each rank's step varies by itself with this
    standard deviation: the largest of normal numbers (Blom, "Statistical Estimates and Transformed Beta-Variables", 1958)."""
    return 0.0 if ranks < 2 else spread * statistics.NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))


def ranks_of(text: str) -> list[int]:
    """Of "1,8,64"."""
    try:
        found = sorted({int(word) for word in text.split(",")})
    except ValueError:
        found = []
    if not found or found[0] < 1 or found[-1] > 10**7:
        raise UserError(f'--ranks {text!r}: write numbers of ranks, "1,8,64,1024"')
    return found


__all__ = ["BUCKET", "Bucket", "Gradient", "Prediction", "Span", "Unit", "Workload", "buckets", "plan", "ranks_of", "replicated",
           "sharded", "slowest", "units"]  # fmt: skip
