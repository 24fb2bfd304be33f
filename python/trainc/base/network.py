"""What a collective costs on a network: alpha-beta models of rings, trees and hierarchies, and how links are written down.

A message of n bytes over a link takes latency + n / bandwidth (alpha + n beta). Sources: Thakur, Rabenseifner, Gropp,
"Optimization of Collective Communication Operations in MPICH", 2005 (ring, recursive halving and doubling, Bruck's all-gather);
Patarasuk, Yuan, "Bandwidth Optimal All-reduce Algorithms for Clusters of Workstations", 2009 (a ring moves 2 (p - 1) / p n bytes
over each link, and no algorithm moves fewer); Sanders, Speck, Traeff, "Two-tree algorithms for full bandwidth broadcast,
reduction and scan", 2009 (trees at full bandwidth). What the processors need to add is not counted.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable

from trainc.base.errors import UserError


@dataclasses.dataclass(frozen=True)
class Link:
    """`bandwidth`: bytes a second, in each direction at once; `latency`: seconds that each message takes beside them."""

    bandwidth: float
    latency: float = 0.0

    def message(self, size: float) -> float:
        return self.latency + size / self.bandwidth

    def shared(self, by: int) -> Link:
        """One of `by` that send at once."""
        return Link(self.bandwidth / by, self.latency)

    def slower(self, other: Link) -> Link:
        """What a chain of both gives."""
        return Link(min(self.bandwidth, other.bandwidth), max(self.latency, other.latency))


# ---- all ranks on links of one kind: seconds, of n bytes on p ranks ---------------------------------------------------------


def ring(n: float, p: int, link: Link) -> float:
    """Reduce-scatter and all-gather around a ring: 2 (p - 1) messages of n / p, one after the other (Patarasuk, Yuan)."""
    return 2 * (p - 1) * link.message(n / p)


def halving(n: float, p: int, link: Link) -> float:
    """Rabenseifner's (Thakur, 2.4): reduce-scatter by recursive halving, all-gather by recursive doubling. Ranks beyond a power
    of two give theirs to a partner before, and have the sum from it after."""
    rounds = p.bit_length() - 1
    power = 1 << rounds
    pairs = 0.0 if p == power else 2 * link.message(n)
    return 2 * rounds * link.latency + 2 * (power - 1) / power * n / link.bandwidth + pairs


def tree(n: float, p: int, link: Link) -> float:
    """To the root of a tree and back, in pieces that follow each other (Sanders, Speck, Traeff: two trees, each of half the
    bytes, in which every rank sends and receives at once): (pieces + depth - 1) messages each way."""
    depth = (p - 1).bit_length()
    if depth == 0:
        return 0.0
    if link.latency == 0:
        return 2 * n / link.bandwidth
    best = max(1.0, math.sqrt((depth - 1) * n / link.bandwidth / link.latency))
    return 2 * min((pieces + depth - 1) * link.message(n / pieces) for pieces in (math.floor(best), math.ceil(best)))


ALL_REDUCE: dict[str, Callable[[float, int, Link], float]] = {"ring": ring, "halving": halving, "tree": tree}


def gather(n: float, p: int, link: Link) -> float:
    """All-gather to n bytes on each rank, and reduce-scatter of n: around a ring, or in ceil(log2 p) rounds (Bruck; recursive
    halving). Both move (p - 1) / p n, so the rounds are never slower."""
    return (p - 1).bit_length() * link.latency + (p - 1) / p * n / link.bandwidth


# ---- a cluster --------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Network:
    """`link`: of a node, which all its ranks share; `node`: ranks of a node, which are connected by `inside`."""

    link: Link
    node: int = 1
    inside: Link | None = None

    def all_reduce(self, n: float, ranks: int) -> tuple[float, str]:
        """(seconds, the algorithm): the fastest of those that libraries have."""
        return min((seconds, name) for name, seconds in self.all_reduces(n, ranks).items())

    def all_reduces(self, n: float, ranks: int) -> dict[str, float]:
        if ranks == 1:
            return {"none": 0.0}
        if self.inside is None or self.node == 1:
            return {name: cost(n, ranks, self.link) for name, cost in ALL_REDUCE.items()}
        if ranks <= self.node:
            return {name: cost(n, ranks, self.inside) for name, cost in ALL_REDUCE.items()}
        # A ring that visits node after node passes each node's link once.
        across, nodes = self.link.shared(self.node), math.ceil(ranks / self.node)
        between = min(cost(n / self.node, nodes, across) for cost in ALL_REDUCE.values())
        return {
            "ring": ring(n, ranks, self.link.slower(self.inside)),
            "hierarchical": 2 * gather(n, self.node, self.inside) + between,
        }

    def gather(self, n: float, ranks: int) -> float:
        """Seconds of an all-gather that leaves n bytes on each rank, or of a reduce-scatter of n bytes."""
        if ranks == 1:
            return 0.0
        if self.inside is None or self.node == 1:
            return gather(n, ranks, self.link)
        if ranks <= self.node:
            return gather(n, ranks, self.inside)
        nodes, across = math.ceil(ranks / self.node), self.link.shared(self.node)
        return gather(n, self.node, self.inside) + gather(n / self.node, nodes, across)

    def broadcast(self, n: float, ranks: int) -> float:
        """Down a binomial tree (Thakur et al., 2.3), nodes first."""
        if n == 0:
            return 0.0
        inside = min(self.node, ranks) if self.inside is not None else 1
        nodes = math.ceil(ranks / inside)
        within = (inside - 1).bit_length() * self.inside.message(n) if inside > 1 else 0.0
        return (nodes - 1).bit_length() * self.link.message(n) + within

    def __str__(self) -> str:
        said = described(self.link)
        return said if self.inside is None else f"{said} a node of {self.node}, {described(self.inside)} inside"


# ---- how links are written ----------------------------------------------------------------------------------------------------

UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}


def bandwidth_of(text: str, option: str) -> float:
    """Bytes a second: of "25GB/s", "200Gbit/s", "900 MB/s"."""
    match = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*([kKMGT]?)(B|bit|b)(?:/s|ps)\s*", text)
    if match is None or not 0 < (size := float(match[1]) * UNITS[match[2].lower()]) < math.inf:
        raise UserError(f'{option} {text!r} is no bandwidth: write "25GB/s" or "200Gbit/s"')
    return size if match[3] == "B" else size / 8


def latency_of(text: str, option: str) -> float:
    """Seconds: of "10us", "0.5 ms", "0"."""
    match = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*(ns|us|µs|ms|s|)\s*", text)
    if match is None or (match[2] == "" and float(match[1]) != 0):
        raise UserError(f'{option} {text!r} is no time: write "10us" or "0.5ms"')
    return float(match[1]) * {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3}.get(match[2], 1.0)


def described(link: Link) -> str:
    power = max((p for p, unit in enumerate(UNITS.values()) if link.bandwidth >= unit), default=0)
    name = ["", "k", "M", "G", "T"][power]
    latency = f"{link.latency * 1e6:.3g} us" if link.latency < 1e-3 else f"{link.latency * 1e3:.3g} ms"
    return f"{link.bandwidth / 1000**power:.3g} {name}B/s, {latency} a message"


def fitted(times: dict[int, float], ranks: int) -> Link:
    """The link that explains measured all-reduces best, {bytes: seconds}, where they went around a ring: a line by least squares
    of relative errors, through no negative latency."""
    rows = [(2 * (ranks - 1), 2 * (ranks - 1) / ranks * n, t) for n, t in times.items()]  # latency's and 1/bandwidth's factors
    aa, ab, bb, at, bt = (sum(f(a / t, b / t) for a, b, t in rows) for f in (
        lambda a, b: a * a, lambda a, b: a * b, lambda a, b: b * b, lambda a, b: a, lambda a, b: b,
    ))  # fmt: skip
    bend = aa * bb - ab * ab
    latency, slope = (at * bb - bt * ab) / bend, (bt * aa - at * ab) / bend
    if latency < 0:
        latency, slope = 0.0, bt / bb
    elif slope <= 0:
        raise UserError("the measured all-reduces take no longer for more bytes: no bandwidth follows from them")
    return Link(1 / slope, latency)


__all__ = [
    "ALL_REDUCE", "Link", "Network", "bandwidth_of", "described", "fitted", "gather", "halving", "latency_of", "ring", "tree",
]  # fmt: skip
