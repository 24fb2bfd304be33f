"""The command `trainc`, and what it tells of this machine."""

from __future__ import annotations

import argparse
import platform
import sys


def info() -> str:
    """What there is to compile for and with."""
    import trainc
    from trainc.base import cache, config

    rows = [("trainc", trainc.__version__), ("Python", platform.python_version())]
    try:
        import torch

        rows += [("PyTorch", torch.__version__), ("threads", str(torch.get_num_threads()))]
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
    return "\n".join(f"{name:<12}{value}" for name, value in rows)


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
        description="Runs a script as `python SCRIPT ...` would. Each model is compiled when it is first called in training.",
    )
    runs.add_argument("--explain", action="store_true", help="print what was compiled at the end")
    largest = commands.add_parser(
        "max-batch",
        help="the largest batch of a training script that fits in memory",
        description="Runs a script until it first calls a model in training, and tells the largest batch that fits, by the "
        "compiled plan: nothing is tried out.",
    )
    largest.add_argument("--memory", help='how much there is: "8GB"; default: what the machine has available')
    for command in (runs, largest):
        command.add_argument("-m", dest="module", action="store_true", help="SCRIPT is a module's name")
        command.add_argument("script", metavar="SCRIPT")
        command.add_argument("words", nargs=argparse.REMAINDER, metavar="...", help="the script's own arguments")
    args = parser.parse_args(words)
    if args.command == "cache":
        print(cache_command(args.action))
    elif args.command == "bug-report":
        bug_report(args.file)
    elif args.command == "run":
        from trainc.cli.script import Compiling, run

        run(args.script, args.words, args.module, Compiling(args.explain))
    elif args.command == "max-batch":
        from trainc.base.errors import UserError
        from trainc.cli.max_batch import max_batch

        try:
            max_batch(args.script, args.words, args.module, args.memory)
        except UserError as error:
            raise SystemExit(str(error)) from None
    else:
        print(info() if args.command == "info" else operations())
