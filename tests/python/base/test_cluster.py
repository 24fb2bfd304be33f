"""The model behind `trainc plan-cluster`: formulas by hand, events against brute force, and what must hold of any workload."""

from __future__ import annotations

import dataclasses
import math
import random

import pytest

from trainc.base.cluster import Gradient, Workload, buckets, plan, ranks_of, replicated, sharded, slowest, units
from trainc.base.errors import UserError
from trainc.base.network import Link, Network, bandwidth_of, fitted, gather, halving, latency_of, ring, tree
from trainc.base.page.cluster import page

MB = 1 << 20


def workload(seed: int, device: str = "cpu", copy: float | None = None) -> Workload:
    """Random: some layers of several parameters; gradients come from the last to the first, several at once here and there."""
    draw = random.Random(seed)
    forward, backward = draw.uniform(0.01, 1), draw.uniform(0.01, 2)
    gradients, clock = [], 0.0
    for layer in reversed(range(draw.randint(1, 9))):
        for name in range(draw.randint(1, 4)):
            clock += draw.choice([0.0, draw.random()])
            unit = f"layers.{layer}" if layer % 4 else ""
            gradients.append([f"{layer}.{name}", draw.randint(1, 40) * MB // draw.choice([1, 1, 64]), clock, unit])
    for gradient in gradients:
        gradient[2] = forward + backward * gradient[2] / (clock or 1.0)
    made = [Gradient(*gradient) for gradient in reversed(gradients)]
    total = sum(g.bytes for g in made)
    memory = {"model": total, "gradients": total, "optimizer": 2 * total, "saved": draw.randint(0, 10**9)}
    each = draw.choice([0.0, 1e-10]) if copy is None else copy
    return Workload("train.py", device, forward, backward, draw.uniform(0, 0.3), made, memory, each)


def network(draw: random.Random, faster: float = 1.0) -> Network:
    link = Link(faster * 10 ** draw.uniform(7, 11), draw.choice([0.0, 10 ** draw.uniform(-6, -2)]))
    node = draw.choice([1, 1, 4, 8])
    return Network(link, node, Link(faster * 10 ** draw.uniform(9, 12), 1e-6) if node > 1 else None)


SEEDS = range(60)
RANKS = (2, 3, 8, 12, 64, 1000, 1024, 10_000)


# -- collectives, by hand -----------------------------------------------------------------------------------------------------


def test_formulas_by_hand():
    link = Link(1e9, 1e-3)
    assert ring(8e6, 4, link) == pytest.approx(6 * (1e-3 + 2e-3))
    assert halving(8e6, 4, link) == pytest.approx(4 * 1e-3 + 1.5 * 8e-3)
    assert halving(8e6, 6, link) == pytest.approx(4 * 1e-3 + 1.5 * 8e-3 + 2 * 9e-3)  # two ranks beyond four
    # Three pieces of 4 MB down a tree of depth 2 is best: 4 messages each way.
    assert tree(12e6, 4, link) == pytest.approx(2 * min((k + 1) * (1e-3 + 12e-3 / k) for k in range(1, 99)))
    assert gather(8e6, 5, link) == pytest.approx(3 * 1e-3 + 0.8 * 8e-3)
    cluster = Network(link, 4, Link(1e10, 1e-4))
    between = ring(2e6, 2, Link(0.25e9, 1e-3))
    assert cluster.all_reduces(8e6, 8)["hierarchical"] <= 2 * (2e-4 + 0.75 * 8e-4) + between
    assert cluster.all_reduce(8e6, 4)[0] == pytest.approx(min(f(8e6, 4, Link(1e10, 1e-4)) for f in (ring, halving, tree)))


@pytest.mark.parametrize("ranks", RANKS)
def test_no_all_reduce_is_below_its_bounds(ranks):
    """2 (p - 1) / p n bytes over each link (Patarasuk, Yuan), and ceil(log2 p) latencies."""
    link, n = Link(1e9, 1e-5), 3e7
    for cost in (ring, halving, tree):
        assert cost(n, ranks, link) >= 2 * (ranks - 1) / ranks * n / 1e9
        assert cost(0, ranks, link) >= math.floor(math.log2(ranks)) * 1e-5
    assert ring(n, ranks, Link(1e9)) == pytest.approx(2 * (ranks - 1) / ranks * n / 1e9)


# -- a step, against one that is played through in small ticks ------------------------------------------------------------------


def by_ticks(work: Workload, net: Network, ranks: int, tick: float, cap: int) -> float:
    """A step of DDP, as a clock that ticks: a thread that goes on with the backward or copies, and a line that works off what it
    is given, both a tick at a time."""
    waiting = sorted(work.gradients, key=lambda g: (g.ready, -work.gradients.index(g)))
    clock, computed, copying, arrived, line, queue = 0.0, 0.0, 0.0, set(), 0.0, []
    groups, group, size, limit = [], [], 0, min(cap, MB)
    for gradient in reversed(work.gradients):
        group.append(gradient)
        size += gradient.bytes
        if size >= limit:
            groups.append(group)
            group, size, limit = [], 0, cap
    groups += [group] if group else []
    while computed < work.forward + work.backward - tick / 2 or copying > tick / 2 or line > tick / 2 or groups or queue:
        while waiting and waiting[0].ready <= computed + tick / 2:
            gradient = waiting.pop(0)
            copying += gradient.bytes * work.copy
            arrived.add(gradient.name)
        if copying <= tick / 2:  # the thread is through with what has come
            while groups and all(g.name in arrived for g in groups[0]):
                queue.append(net.all_reduce(sum(g.bytes for g in groups.pop(0)), ranks)[0])
        if line <= tick / 2 and queue:
            line += queue.pop(0)
        if copying > tick / 2:
            copying -= tick
        else:
            computed += tick
        line = max(line - tick, 0.0) if line > tick / 2 else line
        clock += tick
    return clock + work.bytes * work.copy + work.update


@pytest.mark.parametrize("seed", range(12))
def test_ddp_against_brute_force(seed):
    draw = random.Random(seed)
    work, net, ranks = workload(seed, copy=0.0), network(draw), draw.choice(RANKS)
    cap = draw.choice([1, 5, 25]) * MB
    found = replicated(work, net, ranks, cap)
    tick = max(found.step / 20_000, 1e-7)
    buckets_ = len(buckets(work.gradients, cap, min(cap, MB)))
    assert found.step == pytest.approx(by_ticks(work, net, ranks, tick, cap), abs=(3 * buckets_ + 5) * tick)


def test_copies_hold_up_the_backward():
    """Two buckets of 10 MB, ready at 2 and 3 s; a copy takes 1 s each, an all-reduce 0.5 s; both come back at the end."""
    size = 10 * MB
    gradients = [Gradient("first", size, 3.0), Gradient("last", size, 2.0)]
    work = Workload("", "cpu", 1.0, 2.0, 0.25, gradients, {}, copy=1 / size)
    found = replicated(work, Network(Link(2 * size)), 2, cap=MB)
    assert [(s.start, s.end) for s in found.spans if s.lane == "network"] == [(3.0, 3.5), (5.0, 5.5)]
    assert found.step == pytest.approx(5.5 + 2 + 0.25) and found.communication == pytest.approx(1.0)


def test_ranks_that_share_cores_take_turns():
    work = Workload("w", "cpu", 1.0, 2.0, 1.0, [Gradient("a", MB, 3.0)], {}, threads=2, cores=4)
    quick = Link(1e15, 1e-12)
    alone, two, four = plan(work, Network(quick, 8, quick), [1, 2, 4], ["DDP"])
    assert alone.step == pytest.approx(4.0) and two.step == pytest.approx(4.0) and four.step == pytest.approx(8.0)
    assert four.efficiency == pytest.approx(0.5) and two.efficiency == pytest.approx(1.0)
    # ranks of several machines have cores of their own; and so have those of a machine that is not known
    assert plan(work, Network(quick), [4], ["DDP"])[0].step == pytest.approx(4.0)
    assert plan(dataclasses.replace(work, cores=0), Network(quick, 8, quick), [4], ["DDP"])[0].step == pytest.approx(4.0)


def test_fsdp_by_hand():
    """Two layers of 4 MB and a second of work each; a gather or a scatter of one takes half a second."""
    size = 4 * MB
    gradients = [Gradient("a", size, 4.0, "a"), Gradient("b", size, 3.0, "b")]
    net = Network(Link(size))  # of two ranks: half of the bytes
    for device, step in (("cuda", 0.5 + 2 + 0.5 + 2 + 0.5 + 0.25), ("cpu", 2 * 0.5 + 2 + 2 * 0.5 + 2 + 2 * 0.5 + 0.25)):
        work = Workload("", device, 2.0, 2.0, 0.5, gradients, {"model": 8 * MB, "saved": 10})
        found = sharded(work, net, 2)
        assert found.step == pytest.approx(step) and found.communication == pytest.approx(6 * 0.5)
        assert found.memory == 4 * MB + 10 + 2 * size + 2 * size


# -- what holds of any -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_properties(seed):
    draw = random.Random(1000 + seed)
    work, net = workload(seed, draw.choice(["cpu", "cuda"])), network(draw)
    faster = Network(Link(2 * net.link.bandwidth, net.link.latency / 2), net.node, net.inside)
    for way in (replicated, sharded):
        one = way(work, net, 1)
        assert one.step == work.step and one.efficiency == 1 and one.exposed == one.communication == 0
        assert one.memory == sum(work.memory.values())
        for ranks in RANKS:
            found, other = way(work, net, ranks), way(work, faster, ranks)
            assert other.step <= found.step * (1 + 1e-9) and other.communication <= found.communication * (1 + 1e-9)
            assert 0 < found.efficiency <= 1 and found.step >= work.forward + work.backward
            serial = work.step + found.communication + 2 * work.bytes * work.copy
            assert found.step <= serial * (1 + 1e-9) and found.exposed <= serial - work.forward - work.backward
            for lane in ("compute", "network"):  # nothing does two things at once
                spans = sorted((s.start, s.end) for s in found.spans if s.lane == lane)
                assert all(a[1] <= b[0] * (1 + 1e-12) for a, b in zip(spans, spans[1:], strict=False))
        # A network that costs nothing leaves what the ranks do.
        free = way(work, Network(Link(1e30)), 64)
        assert free.exposed == pytest.approx(2 * work.bytes * work.copy if way is replicated else 0.0, abs=1e-9)
    assert sharded(work, net, 10_000).memory <= sharded(work, net, 8).memory


@pytest.mark.parametrize("seed", SEEDS)
def test_buckets_and_units_keep_everything(seed):
    work = workload(seed)
    parts = buckets(work.gradients)
    assert sum(b.bytes for b in parts) == work.bytes and max(b.ready for b in parts) == max(g.ready for g in work.gradients)
    assert all(b.bytes >= MB for b in parts[:-1])
    found = units(work)
    assert sum(u.bytes for u in found) == work.bytes
    assert sum(u.backward for u in found) == pytest.approx(work.backward)
    assert sum(u.forward for u in found) == pytest.approx(work.forward)


def test_a_measured_group_gives_its_link_back():
    link = Link(3e9, 4e-5)
    sizes = (1 << 10, 1 << 16, 1 << 20, 1 << 24)
    found = fitted({n: ring(n, 4, link) for n in sizes}, 4)
    assert found.bandwidth == pytest.approx(3e9) and found.latency == pytest.approx(4e-5)
    assert fitted({n: n / 1e9 * 1.5 - 1e-9 for n in sizes}, 4).latency == 0
    with pytest.raises(UserError, match="no longer for more bytes"):
        fitted({n: 1 / n for n in sizes}, 4)


def test_the_slowest_of_many():
    draw = random.Random(0)
    largest = [max(draw.gauss(0, 2) for _ in range(64)) for _ in range(2000)]
    assert slowest(2.0, 64) == pytest.approx(sum(largest) / len(largest), rel=0.03) and slowest(2.0, 1) == 0


# -- what users write ------------------------------------------------------------------------------------------------------------


def test_units_that_people_write():
    assert bandwidth_of("25GB/s", "") == bandwidth_of("200Gbit/s", "") == 25e9 and bandwidth_of(" 1.5 MB/s ", "") == 1.5e6
    assert bandwidth_of("100Gbps", "") == 12.5e9 and latency_of("10us", "") == pytest.approx(1e-5) and latency_of("0", "") == 0
    assert latency_of("2.5 ms", "") == pytest.approx(2.5e-3) and ranks_of("8, 1,8") == [1, 8]


@pytest.mark.parametrize(
    "read, text",
    [
        *((bandwidth_of, text) for text in ("", "25", "25GB", "0GB/s", "-1GB/s", "nan GB/s", "1e3GB/s", "25 Xs")),
        *((latency_of, text) for text in ("", "10", "-1us", "10 years")),
    ],
)
def test_what_is_no_size_is_said(read, text):
    with pytest.raises(UserError, match="--link .* is no (bandwidth|time): write"):
        read(text, "--link")


@pytest.mark.parametrize("text", ["", "a", "1,,2", "0", "-4", "1.5", "100000000"])
def test_what_are_no_ranks_is_said(text):
    with pytest.raises(UserError, match="--ranks"):
        ranks_of(text)


def test_the_page_shows_all_of_it():
    work = workload(3)
    work = Workload(**{**vars(work), "title": "<train>.py"})
    text = page(work, Network(Link(1e9, 1e-5)), plan(work, Network(Link(1e9, 1e-5)), [1, 64]))
    assert "&lt;train&gt;.py" in text and "<train>" not in text and "http" not in text.replace("http://www.w3.org", "")
    assert text.count("<section>") == 2 and "bucket 1: " in text and "64 ranks: exposed" in text
