"""`trainc plan-cluster` against measured steps: a DistributedDataParallel of 1, 2 and 4 processes, a thread each, on networks of
three bandwidths (slow_network.py).

    python bench/cluster.py                          # 1, 2, 4 processes
    python bench/cluster.py --ranks 1,2 --links 100MB/s,400MB/s,1GB/s

One rank's costs are measured as the command measures them, and the predictions are made from these. Steps on the three networks
follow each other in turn; each row has the median. More processes than cores share these: a row says so, and is predicted for
that (Workload.crowded). What others do on the machine meanwhile is in the measured steps and not in the predicted ones: run it in
quiet.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time

import torch
from slow_network import Line, join, model_of, start
from torch.nn.parallel import DistributedDataParallel

from trainc.base.cluster import Workload, ranks_of, replicated
from trainc.base.network import Link, Network, bandwidth_of
from trainc.cli.plan_cluster import measure
from trainc.cli.script import Program

WARM = 4


class Training:
    """The program: a loop like any other."""

    def __init__(self, args: argparse.Namespace, parallel: bool):
        self.model = model_of(args.layers, args.width)
        self.line = None
        if parallel:
            self.line = Line()
            self.model = DistributedDataParallel(self.model)
            self.model.register_comm_hook(None, self.line.hook())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.x = torch.randn(args.rows, args.width)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(self.x).square().mean().backward()
        self.optimizer.step()


def measured(args: argparse.Namespace, ranks: int, networks: list[Network]) -> list[float]:
    """On each rank: the median of a step on each network."""
    import trainc

    training = Training(args, parallel=ranks > 1)
    trainc.compile(training.model, training.optimizer)
    spent: list[list[float]] = [[] for _ in networks]
    for turn in range(WARM + args.steps):
        for network, seconds in zip(networks, spent, strict=True):
            if training.line is not None:
                training.line.seconds = lambda size, network=network: network.all_reduce(size, ranks)[0]
            torch.distributed.barrier()
            begin = time.perf_counter()
            training.step()
            if turn >= WARM:
                seconds.append(time.perf_counter() - begin)
    if training.line is not None:
        training.line.close()
    return [statistics.median(seconds) for seconds in spent]


def report(work: Workload, networks: list[tuple[str, Network]], found: dict[int, list[float]]) -> str:
    cores = len(os.sched_getaffinity(0))
    lines = [f"one rank: {work.step * 1e3:.1f} ms a step (backward {work.backward * 1e3:.1f} ms), {work.bytes / 1e6:.1f} MB"]
    lines += [f"{'ranks':>6}{'link':>10}{'predicted':>12}{'measured':>12}{'predicted / measured':>22}{'exposed':>10}"]
    for ranks, steps in found.items():
        for (name, network), seconds in zip(networks, steps, strict=True):
            told = replicated(work.crowded(ranks), network, ranks)
            more = f"   {ranks} processes on {cores} cores" if ranks > cores else ""
            lines.append(
                f"{ranks:>6}{name:>10}{told.step * 1e3:>9.1f} ms{seconds * 1e3:>9.1f} ms{told.step / seconds:>22.2f}"
                f"{told.exposed / told.step:>10.0%}{more}"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="1,2,4")
    parser.add_argument("--links", default="200MB/s,500MB/s,2GB/s")
    parser.add_argument("--latency", type=float, default=1e-3, help="seconds a message: more than a thread's wake-up (0.001)")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--steps", type=int, default=11)
    parser.add_argument("--rank", nargs=2, metavar=("RANK", "FOLDER"), help=argparse.SUPPRESS)
    parser.add_argument("--of", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    networks = [(text, Network(Link(bandwidth_of(text, "--links"), args.latency))) for text in args.links.split(",")]
    if args.train:  # the program that plan-cluster measures
        torch.set_num_threads(1)
        training = Training(args, parallel=False)
        while True:
            training.step()
    if args.rank is not None:
        join(int(args.rank[0]), args.of, args.rank[1])
        print(json.dumps(measured(args, args.of, [network for _, network in networks])), flush=True)
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
        return
    sizes = [f"--{name}={getattr(args, name)}" for name in ("layers", "width", "rows")]
    work = measure(Program("file", __file__, ["--train", *sizes]), "trainc", WARM + args.steps, 0)
    found = {}
    for ranks in ranks_of(args.ranks):
        said = start(__file__, ranks, f"--of={ranks}", *sys.argv[1:])
        found[ranks] = json.loads(said.splitlines()[-1])
    print(report(work, networks, found))


if __name__ == "__main__":
    main()
