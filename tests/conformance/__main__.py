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
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

HERE = Path(__file__).parent
FINDS = ("wrong", "crash", "hang")
GROWN = 3 << 30  # bytes at which a worker is replaced: PyTorch's tracers keep much of what they have seen


class Worker:
    """A process that judges; replaced where it dies, hangs or has grown."""

    def __init__(self, log: Path):
        self._log, self._process = log, None

    def _start(self) -> None:
        if self._process is None or self._process.poll() is not None:
            self._errors = open(self._log, "w+b")
            environment = {**os.environ, "TRAINC_CACHE": "0", "OMP_NUM_THREADS": "1"}
            self._process = subprocess.Popen(
                [sys.executable, HERE / "worker.py"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=environment,
            )
            self._rest = b""

    def _line(self, seconds: float) -> dict | None:
        """What it says next; None where it died. Raises TimeoutError."""
        until = time.monotonic() + seconds
        while b"\n" not in self._rest:
            if not select.select([self._process.stdout], [], [], max(0, until - time.monotonic()))[0]:
                raise TimeoutError
            more = os.read(self._process.stdout.fileno(), 1 << 16)
            if not more:
                return None
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)

    def judge(self, group: tuple, done: set[str], timeout: float, tell) -> None:
        """All cases of a group that are not `done`; `tell` gets each verdict."""
        table, name, dtype, door, most = group
        skip = set(done)
        while True:
            self._start()
            self._process.stdin.write(json.dumps([table, name, dtype, door, most, sorted(skip)]).encode() + b"\n")
            self._process.stdin.flush()
            case, seconds = f"{table}/{name}/{dtype}/samples", timeout + 120  # PyTorch's tables take a while to import
            try:
                while (line := self._line(seconds)) is not None and "end" not in line:
                    if "begin" in line:
                        case, seconds = line["begin"], timeout
                    else:
                        skip.add(line["case"])
                        tell(line)
                if line is not None:
                    break
                status = self._process.wait()
                how, reason = "crash", signal.Signals(-status).name if status < 0 else f"exit status {status}"
            except TimeoutError:
                self._process.kill()
                self._process.wait()
                how, reason = "hang", f"not done after {seconds:.0f} s"
            self._errors.seek(0)
            last = self._errors.read()[-2000:].decode(errors="replace")
            tell({"case": case, "door": door, "class": how, "reason": reason, "stderr": last})
            if case.endswith("/samples"):
                break
            skip.add(case)
        self._errors.truncate(0)
        if self._bytes() > GROWN:
            self.stop()

    def _bytes(self) -> int:
        with open(f"/proc/{self._process.pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()


class Results:
    """Verdicts, a line each, written whole: what a killed run leaves is read again by --resume."""

    def __init__(self, path: Path, resume: bool):
        self.verdicts: list[dict] = []
        path.parent.mkdir(parents=True, exist_ok=True)
        if resume and path.exists():
            lines = path.read_bytes().splitlines(keepends=True)
            self.verdicts = [json.loads(line) for line in lines if line.endswith(b"\n")]
        whole = "".join(json.dumps(v) + "\n" for v in self.verdicts)
        path.with_suffix(".tmp").write_text(whole)
        os.replace(path.with_suffix(".tmp"), path)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND)
        self._lock = threading.Lock()

    def add(self, verdict: dict) -> None:
        with self._lock:
            self.verdicts.append(verdict)
            os.write(self._file, (json.dumps(verdict) + "\n").encode())

    def done(self) -> dict[tuple[str, str], set[str]]:
        """(group, door) -> its cases that have a verdict."""
        found: dict[tuple[str, str], set[str]] = collections.defaultdict(set)
        for v in self.verdicts:
            found["/".join(v["case"].split("/")[:3]), v["door"]].add(v["case"])
        return found


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
    return [(*g, door, args.samples) for g in found for door in args.door]


def sample(found: list[tuple]) -> list[tuple]:
    """Every 53rd group: of all tables, and of each type."""
    return found[::53]


def run(args, results: Results) -> None:
    groups = groups_of(args)
    finished = {(v["case"], v["door"]) for v in results.verdicts if v["class"] == "group"}
    done = results.done()
    waiting: queue.SimpleQueue = queue.SimpleQueue()
    left = [g for g in groups if ("/".join(g[:3]), g[3]) not in finished]
    for group in left:
        waiting.put(group)
    state = {"groups": len(groups) - len(left), "shown": 0.0}

    def tell(verdict: dict) -> None:
        results.add(verdict)
        if verdict["class"] in FINDS:
            print(
                f"\n{verdict['class'].upper()} {verdict['case']} ({verdict['door']}): {verdict['reason']}", flush=True
            )

    def progress(group: tuple) -> None:
        counts = collections.Counter(v["class"] for v in results.verdicts)
        told = ", ".join(f"{counts[c]} {c}" for c in ("compiled", "extern", "refused", "tracer", *FINDS) if counts[c])
        line = f"{state['groups']}/{len(groups)} groups: {told}; {group[1]} {group[2]} {group[3]}"
        if sys.stderr.isatty():
            print(f"\r\033[K{line[:150]}", end="", file=sys.stderr, flush=True)
        elif time.monotonic() - state["shown"] > 30:
            state["shown"] = time.monotonic()
            print(line, file=sys.stderr, flush=True)

    def work(number: int) -> None:
        worker = Worker(args.out.with_name(f"worker{number}.log"))
        try:
            while not stop.is_set():
                try:
                    group = waiting.get_nowait()
                except queue.Empty:
                    return
                name = "/".join(group[:3])
                progress(group)
                worker.judge(group, done[name, group[3]], args.timeout, tell)
                results.add({"case": name, "door": group[3], "class": "group"})
                state["groups"] += 1
        finally:
            worker.stop()

    stop = threading.Event()
    threads = [threading.Thread(target=work, args=(n,)) for n in range(args.jobs)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            while thread.is_alive():
                thread.join(0.5)
    except KeyboardInterrupt:
        stop.set()
        print("\nstopping after the cases that run; --resume goes on", file=sys.stderr)
        for thread in threads:
            thread.join()


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
    every = ["float32", "bfloat16", "float64", "int64"]
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
    parser.add_argument("--door", nargs="+", default=["compile", "backend"], choices=["compile", "backend"],
                        help="trainc.compile(module), or torch.compile(module, backend='trainc'); default: both")  # fmt: skip
    parser.add_argument(
        "--samples", type=int, metavar="N", help="at most so many samples of each operation and type (default: all)"
    )
    parser.add_argument(
        "--sample", action="store_true", help="a cross-section of the groups, for continuous integration"
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes at once (default 1)")
    parser.add_argument("--timeout", type=float, default=120, metavar="SECONDS", help="of one case (default 120)")
    parser.add_argument("--out", type=Path, default=Path("out/conformance/results.jsonl"), help="default: %(default)s")
    parser.add_argument("--resume", action="store_true", help="keep the verdicts in OUT, and go on with what has none")
    parser.add_argument(
        "--report", action="store_true", help="run nothing; the table and the reasons of what is in OUT"
    )
    parser.add_argument("--case", help="run this case alone, here, and print its verdict and its program")
    args = parser.parse_args()
    sys.path.insert(0, str(HERE))
    if args.case:
        return one(args)
    results = Results(args.out, args.resume or args.report)
    if not args.report:
        run(args, results)
    print(f"\n{table(results.verdicts)}")
    for kind in ("refused", "tracer"):
        if told := reasons(results.verdicts, kind, 25):
            print(f"\n{kind}, by reason:\n{told}")
    finds = [v for v in results.verdicts if v["class"] in FINDS]
    if finds:
        print(f"\n{len(finds)} finds:")
        for v in finds:
            print(f"  {v['class']} {v['case']} ({v['door']}): {v['reason'][:200]}")
    return int(bool(finds))


if __name__ == "__main__":
    sys.exit(main())
