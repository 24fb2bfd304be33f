"""The architectures of `transformers`, small, trained eagerly and compiled: `make architectures` (docs/conformance.md).

    python tests/architectures --only gpt2 'qwen*' --door compile
    python tests/architectures --resume            # go on where it was stopped
    python tests/architectures --known docs/architectures.md    # go on with what that page does not have
    python tests/architectures --report --page docs/architectures.md    # the table of what has been run

Every verdict is a line of OUT as soon as it is known. Exit status 1 where a model is wrong, or a process crashed or hung.
"""

from __future__ import annotations

import argparse
import collections
import fnmatch
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]
from workers import FINDS, Results, Worker, add_doors, add_options, work_through  # noqa: E402


def run(args: argparse.Namespace, results: Results) -> None:
    import make
    from judge import COMPILED

    names = [name for name in make.architectures() if any(fnmatch.fnmatchcase(name, pattern) for pattern in args.only)]
    names = names[:: args.every]
    asked = [(name, door) for name in names for door in args.door]
    results.drop(lambda v: v["class"] in args.again)
    known = {(v["case"], v["door"]) for v in results.verdicts}
    begin = time.monotonic()

    def tell(verdict: dict) -> None:
        results.add(verdict)
        done, quiet = len(results.verdicts), verdict["class"] in (*COMPILED, "skipped")
        why = "" if quiet else verdict["reason"][:300]
        told = f"{verdict['case']} ({verdict['door']}): {verdict['class']} {why}"
        print(f"{done}/{len(asked)} after {time.monotonic() - begin:.0f} s: {told}", flush=True)

    def work(worker: Worker, name: str) -> None:  # both doors by one worker, which keeps what eager gave
        for door in args.door:
            if (name, door) not in known:
                same = {v["code"]: v for v in results.verdicts if v["door"] == door and "code" in v and "as" not in v}
                worker.judge((name, door, same), name, door, set(), args.timeout, tell)

    left = dict.fromkeys(name for name, door in asked if (name, door) not in known)
    work_through(left, args.jobs, HERE / "worker.py", args.out, work)


def table(verdicts: list[dict]) -> str:
    from judge import CLASSES, COMPILED

    counts = collections.Counter((v["door"], v["class"]) for v in verdicts)
    lines = [f"{'door':<9}" + "".join(f"{c:>10}" for c in CLASSES) + f"{'of these compiled':>20}"]
    for door in sorted({v["door"] for v in verdicts}):
        total = sum(n for (d, c), n in counts.items() if d == door and c != "skipped")
        share = sum(counts[door, c] for c in COMPILED) / max(1, total)
        lines.append(f"{door:<9}" + "".join(f"{counts[door, c]:>10}" for c in CLASSES) + f"{share:>19.1%}")
    lines += ["", *(f"{c}: {text}" for c, text in CLASSES.items())]
    for kind in (*FINDS, "refused", "tracer", "skipped"):
        found = [v for v in verdicts if v["class"] == kind]
        lines += ["", f"{kind}:"] if found else []
        lines += [f"  {v['case']} ({v['door']}): {v['reason'][:200]}" for v in found]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python tests/architectures", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=["*"], metavar="PATTERN", help="only these types of models (with * and ?)")
    parser.add_argument("--again", nargs="+", default=[], metavar="CLASS", help="with --resume: judge these classes anew")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="each N-th of them alone (default 1: all)")
    add_doors(parser)
    add_options(parser, "out/architectures/results.jsonl", timeout=300)
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the table there, as docs/architectures.md has it")
    parser.add_argument("--known", type=Path, metavar="FILE", help="verdicts of such a page are verdicts of OUT, too: judged "
                        "already, where OUT itself is lost")  # fmt: skip
    args = parser.parse_args()
    if args.every < 1 or args.jobs < 1:
        parser.error("--every and --jobs must be at least 1")
    results = Results(args.out, args.resume, args.report)
    if args.known and not args.report:
        import page

        judged = {(v["case"], v["door"]) for v in results.verdicts}
        for verdict in page.read(args.known):
            if (verdict["case"], verdict["door"]) not in judged:
                results.add(verdict)
    if not args.report:
        run(args, results)
    if args.page:
        import page

        page.write(results.verdicts, args.page)
    print(f"\n{table(results.verdicts)}")
    return int(any(v["class"] in FINDS for v in results.verdicts))


if __name__ == "__main__":
    sys.exit(main())
