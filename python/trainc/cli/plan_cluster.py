"""`trainc plan-cluster train.py --ranks 1,8,64,1024 --link 25GB/s`: what a step of the user's own program would take on so many
ranks, from one run of it on one rank (step_costs.py) and a model of the network (base/cluster.py)."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import socket
import tempfile
from pathlib import Path
from typing import Any

from trainc.base.cluster import Prediction, Workload, plan, ranks_of, slowest
from trainc.base.errors import UserError
from trainc.base.memory import readable
from trainc.base.network import Link, Network, bandwidth_of, latency_of
from trainc.base.page import cluster as page
from trainc.base.report import count
from trainc.cli.compare import recorded, seconds
from trainc.cli.script import Program

MEASURED, STEPS = "measured", 13
WAYS = {False: ("DDP",), True: ("DDP", "FSDP2")}


def add_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--ranks", help='how many processes: "1,8,64,1024"')
    command.add_argument(
        "--link", help=f'bandwidth of a node\'s connection to the others: "25GB/s", "200Gbit/s"; "{MEASURED}" under torchrun'
    )
    command.add_argument("--latency", help='of a message between two nodes: "10us" (the default)')
    command.add_argument("--node", type=int, help="ranks of a node, which share its connection (1)")
    command.add_argument("--inside", help='bandwidth between the ranks of a node: "300GB/s"')
    command.add_argument("--inside-latency", help='of a message within a node: "3us" (the default)')
    command.add_argument("--fsdp", action="store_true", help="FSDP2, too: fully_shard of each layer and of the model")
    command.add_argument("--eager", action="store_true", help="of the program in PyTorch, not compiled")
    command.add_argument("--steps", type=int, help=f"optimizer steps of the run ({STEPS}); the first 3 are the start")
    command.add_argument("--seed", type=int, help="of torch, NumPy and random, before the program starts (0)")
    command.add_argument("--json", metavar="FILE", help="write the figures there")
    command.add_argument("--page", metavar="FILE", help="write a page with pictures there")


def with_options_behind(args: argparse.Namespace, words: list[str]) -> list[str]:
    """The program's words; what of them are options of ours goes to `args`. What stands behind "--" is all the program's."""
    behind = argparse.ArgumentParser(
        prog="trainc plan-cluster", add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS
    )
    add_options(behind)
    end = words.index("\0--") if "\0--" in words else len(words)
    ours, others = behind.parse_known_args(words[1:end])
    vars(args).update(vars(ours))
    return [*words[:1], *others, *words[end + 1 :]]


@dataclasses.dataclass
class Question:
    ranks: list[int]
    ways: tuple[str, ...]
    network: Network | None  # None: to be measured
    json: Path | None
    page: Path | None

    @classmethod
    def of(cls, args: argparse.Namespace) -> Question:
        """UserError where there is something wrong, before anything runs."""
        if not args.ranks or not args.link:
            raise UserError('--ranks "1,8,64" and --link "25GB/s" say what to plan for')
        if args.steps is not None and args.steps < 6:
            raise UserError(f"--steps {args.steps}: 6 at least, for the first 3 are the start")
        latency = latency_of(args.latency or "10us", "--latency")
        if (args.node is None) != (args.inside is None):
            raise UserError("--node (ranks of a node) and --inside (the bandwidth between them) belong together")
        if args.node is not None and args.node < 1:
            raise UserError(f"--node {args.node}: a node has 1 rank at least")
        if args.inside_latency and args.inside is None:
            raise UserError("--inside-latency belongs to --inside")
        inside = None
        if args.inside is not None:
            inside = Link(bandwidth_of(args.inside, "--inside"), latency_of(args.inside_latency or "3us", "--inside-latency"))
        network = None
        if args.link != MEASURED:
            network = Network(Link(bandwidth_of(args.link, "--link"), latency), args.node or 1, inside)
        elif args.latency or args.inside:
            raise UserError(f"--link {MEASURED} measures latency and bandwidth: leave --latency, --node and --inside out")
        elif int(os.environ.get("WORLD_SIZE", "1")) < 2:
            raise UserError(f"--link {MEASURED} needs a group: torchrun --nproc-per-node=2 -m trainc plan-cluster ...")
        return cls(ranks_of(args.ranks), WAYS[args.fsdp], network, _file(args.json, "--json"), _file(args.page, "--page"))


def _file(name: str | None, option: str) -> Path | None:
    if name is None:
        return None
    path = Path(name)
    if path.is_dir() or not path.parent.is_dir():
        raise UserError(f"{option} {name}: no file can be written there")
    return path


def run(args: argparse.Namespace, program: Program, tell: Any) -> str | None:
    """What is to be printed; None on the ranks that were there to measure the network alone."""
    question = Question.of(args)
    network = question.network
    if network is None:
        from trainc.cli.measure_link import measured

        network = measured(tell)
        if network is None:
            return None
    way = "eager" if args.eager else "trainc"
    steps = args.steps or STEPS
    tell(f"{steps} steps on one rank, {way} ...")
    work = measure(program, way, steps, args.seed or 0)
    found = plan(work, network, question.ranks, question.ways)
    if question.json is not None:
        question.json.write_text(as_json(work, network, found))
    if question.page is not None:
        question.page.write_text(page.page(work, network, found), encoding="utf-8")
    return report(work, network, found)


def measure(program: Program, way: str, steps: int, seed: int) -> Workload:
    with tempfile.TemporaryDirectory() as folder:
        words = ["--costs", "--way", way, "--steps", str(steps), "--seed", str(seed), "--file", str(Path(folder) / "record.json")]
        record, said = recorded(f"the {way} run", words, program, steps, one_rank())
    if record["costs"] is None:
        raise UserError(f"the run took {len(record['ends'])} optimizer steps, too few to measure: does {program} train anything?")
    if not record["costs"]["gradients"]:
        raise UserError(f"no gradients were seen: {record['reason'] or 'no model was called in training'}")
    work = Workload.of({"title": str(program), **record["costs"]})
    notes = [*work.notes, *said]
    if way == "trainc" and not record["compiled"]:
        notes.append(f"nothing was compiled: {record['reason']}")
    if record["others"] > 0.3:
        notes.append(f"other processes kept {record['others']:.1f} of {os.cpu_count()} CPUs busy: the times are less certain")
    return dataclasses.replace(work, notes=notes)


def one_rank() -> dict[str, str]:
    """The environment of a rank that is alone, for programs that make a process group."""
    kept = {name: value for name, value in os.environ.items() if not re.match("TORCHELASTIC_|GROUP_|ROLE_", name)}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    return {**kept, **alone, "MASTER_PORT": port}


# ---- what is said of it -------------------------------------------------------------------------------------------------------


def report(work: Workload, network: Network, found: list[Prediction]) -> str:
    lines = [
        f"{work.title}: a step of {seconds(work.step)} on one rank (until the backward {seconds(work.forward)}, backward "
        f"{seconds(work.backward)}, the rest {seconds(work.update)}), {readable(work.bytes)} of gradients",
        f"network: {network}",
    ]  # fmt: skip
    for way in dict.fromkeys(p.way for p in found):
        lines += ["", f"{way:<8}" + "".join(f"{head:>16}" for head in HEADS)]
        for p in (p for p in found if p.way == way):
            cells = [seconds(p.step), seconds(p.communication), seconds(p.exposed), f"{p.efficiency:.1%}", readable(p.memory)]
            lines.append(f"{p.ranks:>8}" + "".join(f"{cell:>16}" for cell in [*cells, p.algorithm]))
    lines += ["", *(f"{note}." for note in notes(work, network, found))]
    return "\n".join(lines)


HEADS = ("step", "communication", "exposed", "efficiency", "memory a rank", "algorithm")


def notes(work: Workload, network: Network, found: list[Prediction]) -> list[str]:
    most = max(p.ranks for p in found)
    told = ["Each rank has a batch of the size that the program has; --link is shared by the ranks of a node"]
    if len({g.ready for g in work.gradients}) == 1:
        told.append("All gradients come at once, at the end of the backward: nothing hides behind it (docs/distributed.md)")
    if work.cores and (together := min(most, network.node)) * work.threads > work.cores:
        told.append(
            f"{together} ranks of a node with {count(work.threads, 'thread')} each share {count(work.cores, 'core')}, as many as "
            "this machine has: what they compute takes as much longer"
        )
    if most > 1 and (wait := slowest(work.spread, most)) > 0.01 * work.step:
        told.append(
            f"Steps of this run vary by {seconds(work.spread)}: if each rank's do so by themselves, all wait for the slowest of "
            f"{most}, some {seconds(wait)} a step, which is not in the table"
        )
    return [*told, *work.notes]


def as_json(work: Workload, network: Network, found: list[Prediction]) -> str:
    told = {"workload": dataclasses.asdict(work), "network": dataclasses.asdict(network)}
    return json.dumps(told | {"predictions": [p.as_dict() for p in found]}, indent=1)


__all__ = ["Question", "add_options", "measure", "one_rank", "report", "run", "with_options_behind"]
