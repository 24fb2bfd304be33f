"""The command `trainc`, and what it tells of this machine."""

from __future__ import annotations

import argparse
import platform
import sys
from contextlib import AbstractContextManager

from trainc.cli.plan_cluster import add_options, with_options_behind
from trainc.cli.script import Program, run


def info() -> str:
    """What there is to compile for and with."""
    import trainc
    from trainc.base import cache, config
    from trainc.cli.machine import Machine

    threads, level, machine = None, "", ""
    rows = [("trainc", trainc.__version__), ("Python", platform.python_version())]
    try:
        import torch

        threads = torch.get_num_threads()
        rows += [("PyTorch", torch.__version__), ("threads", str(threads))]
    except ImportError:
        rows.append(("PyTorch", "not installed: pip install 'trainc[torch]'"))
    try:
        from trainc import _core
    except ImportError as error:
        rows.append(("compiler", f"not built: {error}"))
    else:
        level, machine = _core.cpu_level(), _core.machine_cpu_level()
        forced = "" if level == machine else f", forced by TRAINC_CPU (the machine has {machine})"
        rows += [("CPU", _core.cpu_model()), ("CPU level", f"{level}{forced}")]
        if level == "amx":
            parts = "six bfloat16 products each" if config.float32_in_parts else "multiply-adds"
            rows.append(("float32", f"matrix products are {parts} (trainc.config.float32_in_parts)"))
        rows.append(("operations", f"{len(_core.supported_operations())} compiled (trainc operations lists them)"))
    rows += [
        ("engine", config.engine_name()),
        ("cache", f"{cache.path()} (trainc cache info)" if config.cache else "off (TRAINC_CACHE=0)"),
    ]
    lines = [f"{name:<12}{value}" for name, value in rows]
    found = Machine().obstacles(threads, level, machine)
    lines += ["", *(["In the way:", *(f"- {line}" for line in found)] if found else ["Nothing stands in the way."])]
    return "\n".join(lines)


def operations() -> str:
    from trainc import _core

    return "\n".join(sorted(_core.supported_operations()))


def cache_command(action: str) -> str:
    from trainc.base import cache

    if action == "info":
        return cache.info()
    plans, size = cache.clear()
    return f"removed {plans} plan{'' if plans == 1 else 's'}, {size / 1e6:.1f} MB, from {cache.path()}"


def bug_report(file: str) -> None:
    from trainc.base.errors import UserError
    from trainc.torch.verify import report

    try:
        again = report.run(file)
    except UserError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None
    print(again.text)
    raise SystemExit(1 if again.differs else 0)


def add_program(command: argparse.ArgumentParser) -> None:
    """The program that a command runs, and its own arguments (script.Program)."""
    command.add_argument("-m", dest="module", nargs=argparse.REMAINDER, help="a module and its arguments, instead of SCRIPT")
    command.add_argument("-c", dest="code", nargs=argparse.REMAINDER, help="code and its arguments, instead of SCRIPT")
    command.add_argument("words", nargs=argparse.REMAINDER, metavar="SCRIPT ...", help="a file, or -, and its own arguments")


def _run(args: argparse.Namespace, program: Program) -> AbstractContextManager:
    from trainc.cli.compiling import Compiling, eager
    from trainc.jax.on_import import watch

    if args.eager:
        return eager()
    watch()
    return Compiling(args.explain, args.tune, args.memory, args.leave, args.report)


def _max_batch(args: argparse.Namespace, program: Program) -> AbstractContextManager:
    from trainc.cli.max_batch import Looking

    return Looking(program, args.memory)


def _observe(args: argparse.Namespace, program: Program) -> AbstractContextManager:
    from trainc.cli.observe import Observing

    if args.costs:
        from trainc.cli.step_costs import Costs

        return Costs(args.way, args.steps, args.seed, args.file, args.tune)
    return Observing(args.way, args.steps, args.seed, args.file, args.disturb, args.tune)


def _compare(args: argparse.Namespace, program: Program) -> None:
    from trainc.cli.compare import Price, as_json, compare, report

    price = None if args.price is None else Price.of(args.price)
    ways = [*(["inductor"] if args.inductor else []), "trainc"]
    found = compare(program, args.steps, args.seed, ways, args.tune, lambda text: print(text, file=sys.stderr, flush=True))
    print((as_json if args.json else report)(found, args.total_steps, price))
    if found.differs("trainc"):
        raise SystemExit(1)


def _plan_cluster(args: argparse.Namespace, program: Program) -> None:
    from trainc.cli import plan_cluster

    found = plan_cluster.run(args, program, lambda text: print(text, file=sys.stderr, flush=True))
    if found is not None:
        print(found)


# Commands of a program: within what it runs; None where that is done.
_PROGRAMS = {"run": _run, "max-batch": _max_batch, "observe": _observe, "compare": _compare, "plan-cluster": _plan_cluster}


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="trainc", description="A training compiler for PyTorch.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
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
    runs = commands.add_parser(
        "run",
        help="run a training script, compiled, without changing a line of it",
        description="Runs a program as `python PROGRAM ...` would. Each model is compiled when it is first called in training.",
    )
    runs.add_argument("--eager", action="store_true", help="compile nothing: the same run in PyTorch, to compare with")
    runs.add_argument("--explain", action="store_true", help="print what was compiled at the end")
    runs.add_argument("--report", metavar="FILE", help="write report.html or trace.json at the end: trainc.report of each model")
    runs.add_argument(
        "--leave", metavar="CLASS", action="append", default=[],
        help="a model that stays PyTorch's, by its class (where gradients of gradients are taken); may be repeated",
    )  # fmt: skip
    runs.add_argument("--memory", help='the most that training may need: "8GB", or a share (0.7) of what it would need')
    largest = commands.add_parser(
        "max-batch",
        help="the largest batch of a training script that fits in memory",
        description="Runs a script until it first calls a model in training, and tells the largest batch that fits, by the "
        "compiled plan: nothing is tried out.",
    )
    largest.add_argument("--memory", help='how much there is: "8GB"; default: what the machine has available')
    compares = commands.add_parser(
        "compare",
        help="is it worth it? a training script, eager and compiled, side by side",
        description="Runs the program eagerly, compiled, and eagerly again, each in a process of its own from the same seed, "
        "until some optimizer steps are done: losses, the time of a step, memory, and what it means for the whole run. What "
        "the program writes to files, it writes several times.",
    )
    compares.add_argument("--steps", type=int, default=20, help="optimizer steps of each run (20); the first 3 are the start")
    compares.add_argument("--inductor", action="store_true", help="torch.compile's own compiler, too")
    compares.add_argument("--total-steps", type=int, help="of the whole training: how long it would take")
    compares.add_argument("--price", help='of an hour of this machine: "2.5/h"; with --total-steps, what training costs')
    compares.add_argument("--json", action="store_true", help="print it as JSON")
    planned = commands.add_parser(
        "plan-cluster",
        help="what a step of a training script would take on more processes",
        description="Runs the program for some optimizer steps on one rank, and tells from these and a model of the network what "
        "a step takes on so many ranks. The options may stand behind the program, too; what stands behind -- is the program's.",
    )
    add_options(planned)
    observed = commands.add_parser("observe")  # one run of compare, or of plan-cluster
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
    args = parser.parse_args(Program.escaped(sys.argv[1:] if words is None else words))
    if args.command == "plan-cluster":
        for given in ("module", "code", "words"):
            setattr(args, given, with_options_behind(args, getattr(args, given) or []))
    if args.command == "cache":
        print(cache_command(args.action))
    elif args.command == "bug-report":
        bug_report(args.file)
    elif args.command in _PROGRAMS:
        from trainc.base.errors import UserError

        try:
            program = Program.of(args.module, args.code, args.words)
            around = _PROGRAMS[args.command](args, program)
        except UserError as error:
            print(f"trainc {args.command}: {error}", file=sys.stderr)
            raise SystemExit(2) from None
        if around is not None:
            run(program, around)
    else:
        print(info() if args.command == "info" else operations())
