"""How much of the communication hides behind the backward: eager, Inductor and trainc under DistributedDataParallel, interleaved,
on a network so slow that all of it takes `--share` of each one's own backward.

    python bench/overlap.py                            # two processes, a thread each
    python bench/overlap.py --ways eager,trainc --timeline

What could be hidden is all but the last bucket, which is full when the backward is over. `hidden` is the share of that which did
not make the backward longer: 1 - (slow - free - last) / (communication - last). On a machine that does other things, too, look at
this column alone: both backwards are of the same round. `step` is trainc.train_step, one plan: what is timed is the whole of it,
of which the backward is two thirds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time

import torch
from slow_network import Line, join, model_of, start
from torch.nn.parallel import DistributedDataParallel

WAYS = ("eager", "inductor", "trainc", "step")
WARM = 3


class Contestant:
    def __init__(self, way: str, args: argparse.Namespace):
        import trainc

        torch.compiler.reset()
        self.way, self.line = way, Line()
        net = model_of(args.layers, args.width)
        cap = 4 * args.width**2 / 2**20  # a bucket for each layer
        self.model = DistributedDataParallel(net, bucket_cap_mb=cap, gradient_as_bucket_view=True)
        hook = self.line.hook()
        self.model.register_comm_hook(None, hook)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        if way == "trainc":
            trainc.compile(self.model, self.optimizer)
        if way == "step":
            from trainc.torch.run import average

            average.MORE_HOOKS["line"] = hook
            self.step = trainc.train_step(self.body)
        self.called = torch.compile(self.model) if way == "inductor" else self.model
        self.x = torch.randn(args.rows, args.width)

    def body(self, x: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = self.model(x).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss

    def backward(self, seconds: float | None) -> tuple[float, list[tuple[float, float]]]:
        """Seconds of a backward, each bucket of which takes so long on the network; when each was there, from its beginning."""
        self.line.seconds = None if seconds is None else lambda _: seconds
        if self.way != "step":
            self.optimizer.zero_grad()
            loss = self.called(self.x).square().mean()
        torch.distributed.barrier()
        self.line.log.clear()
        begin = time.perf_counter()
        self.step(self.x) if self.way == "step" else loss.backward()
        spent = time.perf_counter() - begin
        if self.way != "step":
            self.optimizer.step()
        return spent, [(a - begin, b - begin) for a, b, _ in self.line.log]


def contest(args: argparse.Namespace) -> dict:
    """On each rank: {way: rounds of (free, slow, buckets, seconds of a bucket)}."""
    found, contestants = {}, []
    for way in args.ways.split(","):
        try:
            contestant = Contestant(way, args)
            free = [contestant.backward(None)[0] for _ in range(WARM + 3)][WARM:]
            # Ranks agree on how slow the network is, by the slowest.
            share = args.share / (1.5 if way == "step" else 1)  # its backward is two thirds of it
            each = torch.tensor(share * statistics.median(free) / args.layers)
            torch.distributed.all_reduce(each, torch.distributed.ReduceOp.MAX)
            contestants.append((contestant, float(each)))
            found[way] = {"seconds": float(each), "rounds": []}
        except Exception as error:
            found[way] = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:100]}
    for _ in range(args.rounds):
        for contestant, each in contestants:
            free, _ = contestant.backward(None)
            slow, log = contestant.backward(each)
            found[contestant.way]["rounds"].append([free, slow, log])
    for contestant, _ in contestants:
        contestant.line.close()
    return found


def hidden(free: float, slow: float, log: list, each: float) -> float:
    """Of what could be: all buckets but the last."""
    exposed = max(slow - free - each, 0.0)
    return 1 - min(exposed / (each * (len(log) - 1)), 1.0)


def report(found: dict, args: argparse.Namespace) -> str:
    lines = [f"{'':<10}{'backward':>10}{'buckets':>9}{'network':>10}{'together':>10}{'hidden':>9}   (middle half)"]
    for way, told in found.items():
        if "error" in told:
            lines.append(f"{way:<10}{told['error']}")
            continue
        each, rounds = told["seconds"], told["rounds"]
        free, slow = (statistics.median(r[i] for r in rounds) for i in (0, 1))
        shares = sorted(hidden(a, b, log, each) for a, b, log in rounds)
        low, median, high = statistics.quantiles(shares, n=4, method="inclusive")
        count = len(rounds[-1][2])
        lines.append(
            f"{way:<10}{free * 1e3:>7.1f} ms{count:>9}{each * count * 1e3:>7.1f} ms{slow * 1e3:>7.1f} ms{median:>9.0%}"
            f"   ({low:.0%}, {high:.0%})"
        )
        if args.timeline:
            end = max(rounds[-1][1], rounds[-1][2][-1][1])
            for begin, until in rounds[-1][2]:
                a, b = int(60 * begin / end), max(int(60 * until / end), int(60 * begin / end) + 1)
                lines.append(f"    |{' ' * a}{'#' * (b - a)}{' ' * (60 - b)}| {begin * 1e3:.1f} to {until * 1e3:.1f} ms")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--share", type=float, default=0.5, help="of the backward that the network takes (0.5)")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--timeline", action="store_true", help="when each bucket was on the network, in the last round")
    parser.add_argument("--rank", nargs=2, metavar=("RANK", "FOLDER"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank is None:
        print(report(json.loads(start(__file__, args.ranks, *sys.argv[1:]).splitlines()[-1]), args))
        return
    join(int(args.rank[0]), args.ranks, args.rank[1])
    found = contest(args)
    print(json.dumps(found), flush=True)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
