"""Processes that judge cases and say so line by line, and the file of their verdicts: what `make conformance` and `make
architectures` share.

A worker reads a request, a JSON list, as a line on its standard input, and answers with lines: {"begin": case} before each case,
its verdict {"case", "door", "class", "reason", ...} after it, and {"end": true} after the last.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

FINDS = ("wrong", "crash", "hang")
GROWN = 3 << 30  # bytes at which a worker is replaced: PyTorch's tracers keep much of what they have seen


class Worker:
    """A process that judges; replaced where it dies, hangs or has grown."""

    def __init__(self, script: Path, log: Path):
        self._script, self._log, self._process = script, log, None

    def _start(self) -> None:
        if self._process is None or self._process.poll() is not None:
            self._errors = open(self._log, "w+b")
            environment = {**os.environ, "TRAINC_CACHE": "0", "OMP_NUM_THREADS": "1"}
            self._process = subprocess.Popen(
                [sys.executable, self._script],
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

    def judge(
        self, request: Sequence, whole: str, door: str, done: set[str], timeout: float, tell: Callable[[dict], None]
    ) -> None:
        """All cases of a request that are not `done`; `tell` gets each verdict. `whole`: the case that is named where the worker
        fails before its first one."""
        skip = set(done)
        while True:
            self._start()
            self._process.stdin.write(json.dumps([*request, sorted(skip)]).encode() + b"\n")
            self._process.stdin.flush()
            case, seconds = whole, timeout + 120  # PyTorch's tables take a while to import
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
            if case == whole:
                break
            skip.add(case)
        self._errors.truncate(0)
        if self._process.poll() is None and self._bytes() > GROWN:
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

    def __init__(self, path: Path, resume: bool, read_only: bool = False):
        self.verdicts: list[dict] = []
        path.parent.mkdir(parents=True, exist_ok=True)
        if (resume or read_only) and path.exists():
            lines = path.read_bytes().splitlines(keepends=True)
            self.verdicts = [json.loads(line) for line in lines if line.endswith(b"\n")]
        self._path, self._lock = path, threading.Lock()
        if not read_only:  # else another process may be writing
            self._write()

    def _write(self) -> None:
        whole = "".join(json.dumps(v) + "\n" for v in self.verdicts)
        self._path.with_suffix(".tmp").write_text(whole)
        os.replace(self._path.with_suffix(".tmp"), self._path)
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND)

    def drop(self, which: Callable[[dict], bool]) -> None:
        """Before any is added: these are as if they had not been judged."""
        self.verdicts = [v for v in self.verdicts if not which(v)]
        self._write()

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


def tell_finds(verdicts: Iterable[dict]) -> int:
    """Prints those that must not be; the exit status: 1 where there is one."""
    finds = [v for v in verdicts if v["class"] in FINDS]
    if finds:
        print(f"\n{len(finds)} finds:")
        for v in finds:
            print(f"  {v['class']} {v['case']} ({v['door']}): {v['reason'][:200]}")
    return int(bool(finds))


def work_through(items: Iterable[Any], jobs: int, script: Path, out: Path, work: Callable[[Worker, Any], None]) -> None:
    """`work(worker, item)` of each item, by so many workers at once. Ctrl-C lets those end that run."""
    waiting: queue.SimpleQueue = queue.SimpleQueue()
    for item in items:
        waiting.put(item)
    stop = threading.Event()

    def take(number: int) -> None:
        worker = Worker(script, out.with_name(f"worker{number}.log"))
        try:
            while not stop.is_set():
                try:
                    item = waiting.get_nowait()
                except queue.Empty:
                    return
                work(worker, item)
        finally:
            worker.stop()

    threads = [threading.Thread(target=take, args=(number,)) for number in range(jobs)]
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


def requests() -> Iterator[tuple[list, Callable[[dict], None]]]:
    """In a worker: each request, and what answers it. To be called before anything is imported that prints."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the cases print is not a verdict

    def answer(line: dict) -> None:
        print(json.dumps(line, default=str), file=out)

    def each() -> Iterator[tuple[list, Callable[[dict], None]]]:
        for line in sys.stdin:
            yield json.loads(line), answer
            answer({"end": True})

    return each()


def add_doors(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--door", nargs="+", default=["compile", "backend"], choices=["compile", "backend"],
                        help="trainc.compile(model), or torch.compile(model, backend='trainc'); default: both")  # fmt: skip


def add_options(parser: argparse.ArgumentParser, out: str, timeout: float) -> None:
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes at once (default 1)")
    parser.add_argument("--timeout", type=float, default=timeout, metavar="SECONDS", help="of one case (default %(default)s)")
    parser.add_argument("--out", type=Path, default=Path(out), help="default: %(default)s")
    parser.add_argument("--resume", action="store_true", help="keep the verdicts in OUT, and go on with what has none")
    parser.add_argument("--report", action="store_true", help="run nothing; the table and the reasons of what is in OUT")
