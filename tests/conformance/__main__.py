"""PyTorch's own tables of operations, modules and optimizers, compiled, against eager: `make conformance` (docs/conformance.md).

    python tests/conformance --ops 'nn.functional.*' add --dtypes float32 --door compile --jobs 2
    python tests/conformance --case 'op/add/float32/3 noncontiguous' --door backend     # one, with its program
    python tests/conformance --resume                                                   # go on where it was stopped

Every verdict is a line of OUT as soon as it is known. Exit status 1 where a result is wrong, or a process crashed or hung.
"""

from __future__ import annotations

import argparse
import collections
import fnmatch
import json
import random
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
from workers import FINDS, Results, Worker, add_doors, add_options, tell_finds, work_through  # noqa: E402


def groups_of(args) -> list[tuple]:
    import optimizers
    from opinfos import groups

    found = []
    for table in args.tables:
        found += optimizers.groups(args.dtypes) if table == "optim" else groups(table, args.dtypes)
    if args.ops:
        found = [g for g in found if any(fnmatch.fnmatchcase(g[1], pattern) for pattern in args.ops)]
    if args.sample:
        found = sample(found)
    if args.shuffle is not None:
        random.Random(args.shuffle).shuffle(found)
    return [(*g, door, args.samples) for g in found for door in args.door]


def sample(found: list[tuple]) -> list[tuple]:
    """Every 101st group: of all tables, and of each type."""
    return found[::101]


def run(args, results: Results) -> None:
    groups = groups_of(args)
    finished = {(v["case"], v["door"]) for v in results.verdicts if v["class"] == "group"}
    done = results.done()
    left = [g for g in groups if ("/".join(g[:3]), g[3]) not in finished]
    state = {"groups": len(groups) - len(left), "shown": 0.0}

    def tell(verdict: dict) -> None:
        results.add(verdict)
        if verdict["class"] in FINDS:
            print(
                f"\n{verdict['class'].upper()} {verdict['case']} ({verdict['door']}): {verdict['reason']}", flush=True
            )

    def progress(group: tuple) -> None:
        counts = collections.Counter(v["class"] for v in results.verdicts)
        told = ", ".join(f"{counts[c]} {c}" for c in ("compiled", "extern", "split", "refused", "tracer", *FINDS) if counts[c])
        line = f"{state['groups']}/{len(groups)} groups: {told}; {group[1]} {group[2]} {group[3]}"
        if sys.stderr.isatty():
            print(f"\r\033[K{line[:150]}", end="", file=sys.stderr, flush=True)
        elif time.monotonic() - state["shown"] > 30:
            state["shown"] = time.monotonic()
            print(line, file=sys.stderr, flush=True)

    def work(worker: Worker, group: tuple) -> None:
        name = "/".join(group[:3])
        progress(group)
        worker.judge(group, f"{name}/samples", group[3], done[name, group[3]], args.timeout, tell)
        results.add({"case": name, "door": group[3], "class": "group"})
        state["groups"] += 1

    work_through(left, args.jobs, HERE / "worker.py", args.out, work)


def table(verdicts: list[dict]) -> str:
    from judge import CLASSES

    rows: dict[tuple, collections.Counter] = collections.defaultdict(collections.Counter)
    for v in verdicts:
        if v["class"] != "group":
            kind, _, dtype = v["case"].split("/")[:3]
            rows[kind, dtype, v["door"]][v["class"]] += 1
            rows["all", "", v["door"]][v["class"]] += 1
    head = (
        f"{'table':<8}{'dtype':<10}{'door':<9}" + "".join(f"{c:>10}" for c in CLASSES) + f"{'compiled or extern':>20}"
    )
    lines = [head]
    for key, counts in sorted(rows.items()):
        total = sum(counts.values()) - counts["skipped"] - counts["tracer"]
        share = (counts["compiled"] + counts["extern"]) / max(1, total)
        lines.append(
            f"{key[0]:<8}{key[1]:<10}{key[2]:<9}" + "".join(f"{counts[c]:>10}" for c in CLASSES) + f"{share:>19.2%}"
        )
    return "\n".join([*lines, "", *(f"{c}: {text}" for c, text in CLASSES.items())])


def reasons(verdicts: list[dict], kind: str, most: int) -> str:
    counts: dict[str, list[str]] = collections.defaultdict(list)
    for v in verdicts:
        if v["class"] == kind:
            counts[f"{v['door']}: {v['reason'][:160]}"].append("/".join(v["case"].split("/")[:3]))
    ranked = sorted(counts.items(), key=lambda item: -len(item[1]))[:most]
    return "\n".join(f"{len(cases):>6}  {reason}  ({', '.join(sorted(set(cases))[:3])})" for reason, cases in ranked)


def one(args) -> int:
    import optimizers
    import worker  # noqa: F401  (no cache)
    from judge import judge
    from opinfos import cases

    kind, name, dtype = args.case.split("/")[:3]
    some = optimizers.cases(name, dtype, None) if kind == "optim" else cases(kind, name, dtype, None)
    case = next((c for c in some if c.name == args.case), None)
    if case is None:
        print(f"there is no case {args.case!r}; one is called as in {args.out}, 'op/add/float32/0'")
        return 2
    found = False
    for door in args.door:
        verdict = (optimizers.judge if kind == "optim" else judge)(case, door)
        found = found or verdict["class"] in FINDS
        program = verdict.pop("program", "") or (case.make().text() if kind != "optim" else "")
        print(json.dumps(verdict, indent=1, default=str), program, sep="\n")
    return int(found)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python tests/conformance", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    every = ["float32", "bfloat16", "float64", "int64", "float16", "bool"]
    parser.add_argument(
        "--tables", nargs="+", default=["op", "module", "optim"], choices=["op", "module", "optim"], help="default: all"
    )
    parser.add_argument(
        "--ops",
        nargs="+",
        metavar="PATTERN",
        help="only operations, modules or optimizers of these names (with * and ?)",
    )
    parser.add_argument("--dtypes", nargs="+", default=every, choices=every, help="default: all")
    parser.add_argument(
        "--samples", type=int, metavar="N", help="at most so many samples of each operation and type (default: all)"
    )
    parser.add_argument(
        "--sample", action="store_true", help="a cross-section of the groups, for continuous integration"
    )
    parser.add_argument(
        "--shuffle", type=int, metavar="SEED", help="the groups in a random order: what is stopped has seen of everything"
    )
    add_doors(parser)
    add_options(parser, "out/conformance/results.jsonl", timeout=120)
    parser.add_argument("--case", help="run this case alone, here, and print its verdict and its program")
    args = parser.parse_args()
    sys.path.insert(0, str(HERE))
    if args.case:
        return one(args)
    results = Results(args.out, args.resume, args.report)
    if not args.report:
        run(args, results)
    print(f"\n{table(results.verdicts)}")
    for kind in ("refused", "tracer"):
        if told := reasons(results.verdicts, kind, 25):
            print(f"\n{kind}, by reason:\n{told}")
    return tell_finds(results.verdicts)


if __name__ == "__main__":
    sys.exit(main())
