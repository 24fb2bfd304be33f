"""A framework's own tests, run through us: what `make jax-suite` and `make torch-suite` share.

The tests are the caller's checkout. Each runs through us, and where it fails once more without us; what becomes of it is a class
(`Suite.classes`). Results are a line each, as soon as they are known (workers.py).
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import io
import re
import sys
import time
import unittest
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from workers import FINDS, Results, Worker, add_options, tell_finds, work_through

PARTS = 24  # of a file's tests, each a cross-section of it


@dataclass(frozen=True)
class Suite:
    worker: Path  # the script that judges
    door: str
    classes: dict[str, str]  # what may become of a test -> what that means
    compiled: str  # heading of the last column
    of: tuple[str, ...]  # classes of tests that could be compiled, beside FINDS


def parser_of(name: str, told: str, files: tuple[str, ...], what: str, nargs: str | None = None) -> argparse.ArgumentParser:
    """Of the suite in tests/NAME. `told`: its help; `what`: which checkout it wants; `nargs`: "?" where it can do without."""
    parser = argparse.ArgumentParser(
        prog=f"python tests/{name}", description=told, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=Path, nargs=nargs, help=what)
    parser.add_argument("--files", nargs="+", default=files, metavar="NAME", help="of tests, without .py (default: those listed)")
    parser.add_argument("--only", nargs="+", default=[], metavar="TEXT", help="only tests whose name holds one of these")
    parser.add_argument("--sample", action="store_true", help="one part of each file: some minutes")
    add_options(parser, f"out/{name}/results.jsonl", timeout=120)
    return parser


def run_and_tell(suite: Suite, args: argparse.Namespace, paths: dict[str, Path], kind_of: Callable[[str], str]) -> int:
    """The exit status: 1 where there is a find."""
    results = Results(args.out, args.resume or args.report, args.report)
    if not args.report:
        run(suite, args, paths, results)
    print(f"\n{table(suite, results.verdicts)}\n")
    print(f"fell back, by reason (tests, reason, one of them):\n{reasons(results.verdicts, kind_of)}")
    return tell_finds(results.verdicts)


def run(suite: Suite, args: argparse.Namespace, paths: dict[str, Path], results: Results) -> None:
    """Judges what has no verdict yet: part by part of each file, so that what is done first is a sample of all."""
    done: dict[str, list[str]] = collections.defaultdict(list)
    for v in results.verdicts:
        done[v["case"].partition("/")[0]].append(v["case"])
    for path in paths.values():
        if not path.exists():
            sys.exit(f"there is no {path}")
    groups = [(name, part) for part in range(PARTS) for name in paths]
    if args.sample:
        groups = groups[: len(paths)]
    left = [g for g in groups if f"{g[0]}/{g[1]} of {PARTS}" not in done[g[0]]]

    def tell(verdict: dict) -> None:
        results.add(verdict)
        if verdict["class"] in FINDS:
            print(f"\n{verdict['class'].upper()} {verdict['case']}: {verdict['reason']}", flush=True)

    def work(worker: Worker, group: tuple) -> None:
        name, part = group
        whole = f"{name}/{part} of {PARTS}"
        request = (str(paths[name].resolve()), part, PARTS, args.only)
        worker.judge(request, whole, suite.door, set(done[name]), args.timeout, tell)
        results.add({"case": whole, "door": suite.door, "class": "group"})
        counts = collections.Counter(v["class"] for v in results.verdicts)
        told = ", ".join(f"{counts[c]} {c}" for c in suite.classes if counts[c])
        print(f"{time.strftime('%X')} {whole}: {told}", file=sys.stderr)

    work_through(left, args.jobs, suite.worker, args.out, work)


def table(suite: Suite, verdicts: list[dict]) -> str:
    rows: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
    for v in verdicts:
        if v["class"] != "group":
            rows[v["case"].partition("/")[0]][v["class"]] += 1
            rows["all"][v["class"]] += 1
    head = f"| file | {' | '.join(suite.classes)} | {suite.compiled} |"
    lines = [head, "|---|" + "--:|" * (len(suite.classes) + 1)]
    for name, counts in sorted(rows.items(), key=lambda row: row[0] == "all"):
        could = sum(counts[c] for c in (*suite.of, *FINDS))
        share = f"{counts['compiled'] / could:.1%}" if could else ""
        lines.append(f"| {name} | " + " | ".join(str(counts[c]) for c in suite.classes) + f" | {share} |")
    return "\n".join(lines)


def reasons(verdicts: list[dict], kind_of: Callable[[str], str]) -> str:
    """Of tests that fell back; `kind_of`: a reason without what belongs to the one test."""
    counts: dict[str, set[str]] = collections.defaultdict(set)
    for v in verdicts:
        if v["class"] in ("fell back", "in parts"):
            for reason in v["reasons"]:
                counts[re.sub(r"\d+(, \d+)*", "N", kind_of(reason))[:150]].add(v["case"])
    ranked = sorted(counts.items(), key=lambda item: -len(item[1]))
    return "\n".join(f"| {len(cases)} | {reason} | {sorted(cases)[0]} |" for reason, cases in ranked)


# --- in a worker


def tests_of(module: ModuleType, loader: unittest.TestLoader) -> list[unittest.TestCase]:
    """In the order of the loader."""
    found: list[unittest.TestCase] = []

    def take(suite: unittest.TestSuite) -> None:
        for test in suite:
            found.append(test) if isinstance(test, unittest.TestCase) else take(test)

    take(loader.loadTestsFromModule(module))
    return found


def name_of(test: unittest.TestCase) -> str:
    return f"{type(test).__name__}.{test._testMethodName}"


def outcome(test: unittest.TestCase) -> tuple[str, str]:
    """("passed" | "skipped" | "failed", why)."""
    result = unittest.TestResult()
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="trainc: ")
        test.run(result)
    if result.skipped or result.expectedFailures:
        return "skipped", result.skipped[0][1] if result.skipped else "it is expected to fail"
    bad = result.failures + result.errors
    return ("failed", bad[0][1]) if bad else ("passed", "")


def last_line(text: str) -> str:
    """Of a traceback: the error, without what a test's class adds behind it."""
    lines = [line for line in text.strip().splitlines() if line.strip() and not line.startswith(" ")]
    errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Warning|Interrupt|Exit)\b", line)]
    return (errors or lines or [""])[-1][:300]
