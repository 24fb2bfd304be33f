"""The words of the command line `trainc`, and what is said of wrong ones."""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from typing import NoReturn

from trainc.cli.plan_cluster import add_options

HIDDEN = "observe"  # a command that is none of the user's
COMMANDS = ("run", "compare", "max-batch", "plan-cluster", "info", "operations", "cache", "bug-report")


class Parser(argparse.ArgumentParser):
    """argparse's, whose errors say what was meant."""

    def parse_args(self, words: list[str]) -> argparse.Namespace:  # type: ignore[override]
        if not words:
            self.print_help(sys.stderr)
            raise SystemExit(2)
        if not words[0].startswith("-") and words[0] not in (*COMMANDS, HIDDEN):
            self.error(f"there is no command {words[0]!r}{self._meant(words)}")
        args, others = self.parse_known_args(words)
        if others:
            self.prog = f"trainc {args.command}"
            program = next((word for word in getattr(args, "words", ()) if os.path.exists(word)), "PROGRAM")
            behind = f"; what the program is to get stands behind it: {self.prog} {program} {' '.join(others)}"
            self.error(f"there is no option {' '.join(others)}{behind if hasattr(args, 'words') else ''}")
        return args

    def _meant(self, words: list[str]) -> str:
        if os.path.exists(words[0]) or words[0].endswith(".py"):
            return f": did you mean trainc run {' '.join(words)}?"
        near = difflib.get_close_matches(words[0], COMMANDS, 1)
        return f": did you mean {near[0]}?" if near else f"; there are {', '.join(COMMANDS)}"

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message} ({self.prog} --help)", file=sys.stderr)
        raise SystemExit(2)


def _version() -> str:
    import trainc

    return trainc.__version__


def add_program(command: argparse.ArgumentParser) -> None:
    """The program that a command runs, and its own arguments (script.Program)."""
    command.add_argument("-m", dest="module", nargs=argparse.REMAINDER, help="a module and its arguments, instead of SCRIPT")
    command.add_argument("-c", dest="code", nargs=argparse.REMAINDER, help="code and its arguments, instead of SCRIPT")
    command.add_argument("words", nargs=argparse.REMAINDER, metavar="SCRIPT ...", help="a file, or -, and its own arguments")


def command_line() -> Parser:
    parser = Parser(prog="trainc", description="A training compiler for PyTorch.")
    parser.add_argument("--version", action="version", version=f"trainc {_version()}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    runs = commands.add_parser(
        "run",
        help="run a training script, compiled, without changing a line of it",
        description="Runs a program as `python PROGRAM ...` would. Each model is compiled when it is first called in training.",
    )
    runs.add_argument("--eager", action="store_true", help="compile nothing: the same run in PyTorch, to compare with")
    runs.add_argument("--explain", action="store_true", help="at the end, print what was compiled")
    runs.add_argument("--report", metavar="FILE", help="at the end, write a report of each model: report.html or trace.json")
    runs.add_argument(
        "--leave", metavar="CLASS", action="append", default=[],
        help="leave models of this class to PyTorch (where gradients of gradients are taken); may be repeated",
    )  # fmt: skip
    runs.add_argument("--memory", help='the most that training may need: "8GB", or a share (0.7) of what it would need')
    compares = commands.add_parser(
        "compare",
        help="is it worth it? a training script, eager and compiled, side by side",
        description="Runs the program eagerly, compiled, and eagerly again, each in a process of its own from the same seed, "
        "until some optimizer steps are done: losses, the time of a step, memory, and what it means for the whole run. What "
        "the program writes to files, it writes several times.",
    )
    compares.add_argument("--steps", type=int, default=20, help="optimizer steps of each run (20); the first 3 are the start")
    compares.add_argument("--inductor", action="store_true", help="also run it with torch.compile's own compiler")
    compares.add_argument("--total-steps", type=int, help="optimizer steps of the whole training: tells how long it would take")
    compares.add_argument("--price", help='what this machine costs: "2.5/h"; with --total-steps, tells what training costs')
    compares.add_argument("--json", action="store_true", help="print the comparison as JSON")
    largest = commands.add_parser(
        "max-batch",
        help="the largest batch of a training script that fits in memory",
        description="Runs a script until it first calls a model in training, and tells the largest batch that fits, by the "
        "compiled plan: nothing is tried out.",
    )
    largest.add_argument("--memory", help='how much there is: "8GB"; default: what the machine has available')
    commands.add_parser("info", help="this machine, and what trainc compiles with on it")
    commands.add_parser("operations", help="the ATen operations that are compiled; every other one runs in PyTorch")
    caches = commands.add_parser(
        "cache",
        help="the compiled plans on disk",
        description="Compiled plans are kept in TRAINC_CACHE_DIR, at most TRAINC_CACHE_SIZE of them; TRAINC_CACHE=0 keeps none.",
    )
    actions = caches.add_subparsers(dest="action", required=True, metavar="ACTION")
    actions.add_parser("info", help="where they are, how many, how large")
    actions.add_parser("clear", help="remove them all; the next start compiles again")
    reports = commands.add_parser(
        "bug-report",
        help="run a file again that verify= wrote where compiled numbers were not PyTorch's",
        description="Compiles what is in FILE and compares it with PyTorch. Ends with 1 where it still differs, with 0 where it "
        "agrees.",
    )
    reports.add_argument("file", metavar="FILE")
    planned = commands.add_parser(
        "plan-cluster",
        help="what a step of a training script would take on more processes",
        description="Runs the program for some optimizer steps on one rank, and tells from these and a model of the network what "
        "a step takes on so many ranks. The options may stand behind the program, too; what stands behind -- is the program's.",
    )
    add_options(planned)
    observed = commands.add_parser(HIDDEN)  # one run of compare, or of plan-cluster
    observed.add_argument("--costs", action="store_true")
    observed.add_argument("--way", required=True)
    observed.add_argument("--file", required=True)
    observed.add_argument("--steps", type=int, required=True)
    observed.add_argument("--disturb", type=int)
    for command in (compares, observed):
        command.add_argument("--seed", type=int, default=0, help="of torch, NumPy and random, before the program starts (0)")
    for command in (runs, compares, observed):
        command.add_argument(
            "--tune", choices=("fast", "max"), default="fast", help='"max" measures, once, and takes longer to start'
        )
    for command in (runs, largest, compares, planned, observed):
        add_program(command)
    return parser


__all__ = ["HIDDEN", "command_line"]
