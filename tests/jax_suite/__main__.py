"""JAX's own tests, each function that they jit compiled by us: `make jax-suite JAX=CHECKOUT` (docs/jax_suite.md).

    git clone --depth 1 --branch jax-v0.10.2 https://github.com/jax-ml/jax CHECKOUT      # the version that is installed
    python tests/jax_suite CHECKOUT --files lax_test nn_test --cases 3 --jobs 2
    python tests/jax_suite CHECKOUT --files lax_test --only testConvert --out /tmp/some  # tests whose name holds this
    python tests/jax_suite CHECKOUT --resume                                             # go on where it was stopped

Every verdict is a line of OUT as soon as it is known. Exit status 1 where a result is wrong, or a process crashed or hung.
"""

from __future__ import annotations

import argparse
import collections
import os
import re
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
from workers import FINDS, Results, Worker, add_options, tell_finds, work_through  # noqa: E402

FILES = (
    "lax_test", "lax_numpy_test", "lax_numpy_reducers_test", "lax_numpy_operators_test", "lax_numpy_ufuncs_test",
    "lax_numpy_indexing_test", "lax_numpy_einsum_test", "lax_numpy_vectorize_test", "lax_scipy_test",
    "lax_scipy_special_functions_test", "nn_test", "lax_autodiff_test", "lax_control_flow_test", "random_lax_test",
    "scipy_stats_test", "scipy_signal_test", "image_test", "polynomial_test",
)  # fmt: skip
CLASSES = {
    "compiled": "passed; every function that the test jits was compiled",
    "fell back": "passed; some function was XLA's, for a reason that was told",
    "no jit": "the test jits nothing (by its text: not run), or within a function that is traced already",
    "skipped": "the test skips itself",
    "fails plainly": "fails without us, too",
    "looks inside": "fails; asks the jitted function for its module or its jaxpr, which are not JAX's own",
    "wrong": "passes without us alone",
    "crash": "the process died",
    "hang": "not done in time",
}
PARTS = 12  # of a file's tests, each a cross-section of it


def run(args: argparse.Namespace, results: Results) -> None:
    done: dict[str, list[str]] = collections.defaultdict(list)
    for v in results.verdicts:
        done[v["case"].partition("/")[0]].append(v["case"])
    paths = {name: args.checkout / "tests" / f"{name}.py" for name in args.files}
    for path in paths.values():
        if not path.exists():
            sys.exit(f"there is no {path}")
    groups = [(name, part) for part in range(PARTS) for name in args.files]
    if args.sample:
        groups = groups[: len(args.files)]
    left = [g for g in groups if f"{g[0]}/{g[1]} of {PARTS}" not in done[g[0]]]

    def tell(verdict: dict) -> None:
        results.add(verdict)
        if verdict["class"] in FINDS:
            print(f"\n{verdict['class'].upper()} {verdict['case']}: {verdict['reason']}", flush=True)

    def work(worker: Worker, group: tuple) -> None:
        name, part = group
        whole = f"{name}/{part} of {PARTS}"
        worker.judge((str(paths[name].resolve()), part, PARTS, args.only), whole, "jit", set(done[name]), args.timeout, tell)
        results.add({"case": whole, "door": "jit", "class": "group"})
        counts = collections.Counter(v["class"] for v in results.verdicts)
        print(f"{time.strftime('%X')} {whole}: " + ", ".join(f"{counts[c]} {c}" for c in CLASSES if counts[c]), file=sys.stderr)

    work_through(left, args.jobs, HERE / "worker.py", args.out, work)


def table(verdicts: list[dict]) -> str:
    rows: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
    for v in verdicts:
        if v["class"] != "group":
            rows[v["case"].partition("/")[0]][v["class"]] += 1
            rows["all"][v["class"]] += 1
    lines = ["| file | " + " | ".join(CLASSES) + " | compiled of those that jit |", "|---|" + "--:|" * (len(CLASSES) + 1)]
    for name, counts in rows.items():
        jits = sum(counts[c] for c in ("compiled", "fell back", *FINDS))
        share = f"{counts['compiled'] / jits:.1%}" if jits else ""
        lines.append(f"| {name} | " + " | ".join(str(counts[c]) for c in CLASSES) + f" | {share} |")
    return "\n".join(lines)


def kind_of(reason: str) -> str:
    """A reason without the lines and sizes of the one function that it is about."""
    reason = re.sub(r"^[^:]*(:\d+)?( ?\(.*?\))?: (?=stablehlo|trainc|dtype)", "", reason)
    reason = re.sub(r" (at|of) \S+:\d+:\d+( \([^)]*\))?", "", reason.partition("\n")[0])
    return re.sub(r"\d+(, \d+)*", "N", re.sub(r"^\S+:\d+\S* ", "", reason))[:150]


def reasons(verdicts: list[dict]) -> str:
    counts: dict[str, set[str]] = collections.defaultdict(set)
    for v in verdicts:
        if v["class"] == "fell back":
            for reason in v["reasons"]:
                counts[kind_of(reason)].add(v["case"])
    ranked = sorted(counts.items(), key=lambda item: -len(item[1]))
    return "\n".join(f"| {len(cases)} | {reason} | {sorted(cases)[0]} |" for reason, cases in ranked)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python tests/jax_suite", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=Path, help="of JAX's repository, at the tag of the version that is installed")
    parser.add_argument("--files", nargs="+", default=FILES, metavar="NAME", help="of tests, without .py (default: those listed)")
    parser.add_argument("--only", nargs="+", default=[], metavar="TEXT", help="only tests whose name holds one of these")
    parser.add_argument("--cases", type=int, default=3, metavar="N", help="that JAX draws of each generated test (default 3)")
    parser.add_argument("--x64", action="store_true", help="with JAX_ENABLE_X64: f64 and i64 are drawn, too")
    parser.add_argument("--sample", action="store_true", help="one part of each file: some minutes")
    add_options(parser, "out/jax_suite/results.jsonl", timeout=120)
    args = parser.parse_args()
    os.environ |= {"JAX_NUM_GENERATED_CASES": str(args.cases), "JAX_ENABLE_X64": str(int(args.x64)), "JAX_PLATFORMS": "cpu"}
    results = Results(args.out, args.resume or args.report, args.report)
    if not args.report:
        run(args, results)
    print(f"\n{table(results.verdicts)}\n\nfell back, by reason (tests, reason, one of them):\n{reasons(results.verdicts)}")
    return tell_finds(results.verdicts)


if __name__ == "__main__":
    sys.exit(main())
