"""The command `trainc`, and what it tells of this machine."""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager

from trainc.cli.ends import answer, ending
from trainc.cli.script import Program, run
from trainc.cli.words import command_line


def info() -> str:
    """What there is to compile for and with."""
    import trainc
    from trainc.base import cache, config
    from trainc.cli.machine import Machine

    threads, level, quickest, best = None, "", "", ""
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
        level, quickest, best = _core.cpu_level(), _core.quickest_cpu_level(), _core.machine_cpu_level()
        forced = "" if level == quickest else f", forced by TRAINC_CPU (the machine has {best})"
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
    found = Machine().obstacles(threads, level, quickest, best)
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


def bug_report(file: str) -> int:
    """The status that it ends with."""
    from trainc.torch.verify import report

    again = report.run(file)
    answer(again.text)
    return 1 if again.differs else 0


def compare_runs(args: argparse.Namespace) -> int:
    """The status that it ends with."""
    from trainc.cli.compare import Price, as_json, compare, report

    program = program_of(args)
    price = None if args.price is None else Price.of(args.price)
    ways = [*(["inductor"] if args.inductor else []), "trainc"]
    found = compare(program, args.steps, args.seed, ways, args.tune, lambda text: print(text, file=sys.stderr, flush=True))
    answer((as_json if args.json else report)(found, args.total_steps, price))
    return 1 if found.differs("trainc") else 0


def planned(args: argparse.Namespace) -> str | int:
    from trainc.cli import plan_cluster

    for given in ("module", "code", "words"):
        setattr(args, given, plan_cluster.with_options_behind(args, getattr(args, given) or []))
    found = plan_cluster.run(args, program_of(args), lambda text: print(text, file=sys.stderr, flush=True))
    return 0 if found is None else found


def _run(args: argparse.Namespace, program: Program) -> AbstractContextManager:
    from trainc.cli.around import compiling, eager

    return eager() if args.eager else compiling(args.explain, args.tune, args.memory, args.leave, args.report)


def _max_batch(args: argparse.Namespace, program: Program) -> AbstractContextManager:
    from trainc.cli.max_batch import Looking

    return Looking(program, args.memory)


def _observe(args: argparse.Namespace, program: Program) -> AbstractContextManager:
    from trainc.cli.observe import Observing

    if args.costs:
        from trainc.cli.step_costs import Costs

        return Costs(args.way, args.steps, args.seed, args.file, args.tune)
    return Observing(args.way, args.steps, args.seed, args.file, args.disturb, args.tune)


def program_of(args: argparse.Namespace) -> Program:
    return Program.of(args.module, args.code, args.words)


# Commands that run a program: within what.
_PROGRAMS = {"run": _run, "max-batch": _max_batch, "observe": _observe}
# The others: their answer, or the status that they end with.
_ANSWERS: dict[str, Callable[[argparse.Namespace], str | int]] = {
    "info": lambda args: info(),
    "operations": lambda args: operations(),
    "cache": lambda args: cache_command(args.action),
    "bug-report": lambda args: bug_report(args.file),
    "compare": compare_runs,
    "plan-cluster": planned,
}


def main(words: list[str] | None = None) -> None:
    args = command_line().parse_args(Program.escaped(sys.argv[1:] if words is None else words))
    with ending(args.command):
        if args.command in _PROGRAMS:
            program = program_of(args)
            around = _PROGRAMS[args.command](args, program)
        elif isinstance(found := _ANSWERS[args.command](args), str):
            answer(found)
        elif found:
            raise SystemExit(found)
    if args.command in _PROGRAMS:
        run(program, around)
