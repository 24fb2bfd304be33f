"""Random programs, trained in PyTorch and through trainc's doors: modules with views, writes in place, buffers, Python state,
control flow, several outputs; loops with accumulation, clipping, schedulers, several batch sizes, evaluation.

    python tests/fuzz --count 200          # or --seconds 3600
    python tests/fuzz --seeds 17 23        # these alone
    python tests/fuzz --encoders           # encoders over batches with padding, of which operations pass over rows
    python tests/fuzz --poison             # memory of the plans is filled with NaN before it is used

What differs is made smaller and written to build/fuzz/SEED.py, a file that runs alone. Exit status 1 where there was something.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from queue import Empty, Queue

HERE = Path(__file__).resolve().parent
FOLDER = HERE.parents[1] / "build" / "fuzz"
PATIENCE = 240  # seconds for one program, its compiles included


def outcome(program) -> tuple[str, str]:
    """("same" | "refused" | "invalid" | "differs" | "raises", what is to be said)."""
    import judge

    try:
        told = judge.compare(program.module(), program.loop)
    except judge.Refused as reason:
        return "refused", str(reason)
    except judge.Invalid as reason:
        return "invalid", str(reason)
    except Exception as error:
        return "raises", f"{type(error).__name__}: {error}".splitlines()[0][:300]
    return ("differs", told) if told else ("same", "")


def program_of(seed: int, kind: str):
    import grammar

    return {"any": grammar.program_of, "encoder": grammar.encoder_of}[kind](seed)


def of_seed(seed: int, kind_of_program: str) -> dict:
    """In this process."""
    from grammar import variables
    from program import alone
    from shrink import shrunk

    program = program_of(seed, kind_of_program)
    kind, told = outcome(program)
    if kind in ("differs", "raises"):
        like = told.split(":")[0]

        def fails(candidate) -> bool:
            if variables(candidate) is None:
                return False
            found, its = outcome(candidate)
            return found == kind and (kind == "differs" or its.split(":")[0] == like)

        program = shrunk(program, fails)
        kind, told = outcome(program)
        FOLDER.mkdir(parents=True, exist_ok=True)
        half = FOLDER / f"{seed}.tmp"
        half.write_text(alone(program, told, (HERE / "judge.py").read_text()))
        half.replace(FOLDER / f"{seed}.py")
    return {"seed": seed, "kind": kind, "told": told, "door": program.loop["door"]}


def child() -> None:
    """Takes seeds and kinds of programs from standard input, a line each, and answers with a line."""
    sys.path.insert(0, str(HERE))
    import torch

    torch.set_num_threads(1)
    for line in sys.stdin:
        seed, kind = line.split()
        answer = of_seed(int(seed), kind)
        print(json.dumps(answer), flush=True)


class Worker:
    """A child that is started again where it dies or hangs."""

    def __init__(self, environment: dict[str, str], kind: str):
        self.environment, self.kind, self.process, self.told = environment, kind, None, 0

    def ask(self, seed: int) -> dict:
        if self.process is None or self.told >= 40:  # a fresh one: what PyTorch and Dynamo keep does not grow for ever
            self.close()
            self.process, self.told = subprocess.Popen(
                [sys.executable, str(HERE), "--child"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                text=True, env=self.environment,
            ), 0  # fmt: skip
        self.told += 1
        process, answers = self.process, Queue()
        process.stdin.write(f"{seed} {self.kind}\n")
        process.stdin.flush()
        threading.Thread(target=lambda: answers.put(process.stdout.readline()), daemon=True).start()
        try:
            line = answers.get(timeout=PATIENCE * 4)  # making it smaller takes as long again
        except Empty:
            line = ""
        if line:
            return json.loads(line)
        hung = process.poll() is None
        self.close()
        return {"seed": seed, "kind": "hangs" if hung else "dies", "told": f"exit status {process.returncode}", "door": "?"}

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@dataclasses.dataclass
class Fuzz:
    seeds: Queue
    until: float
    environment: dict[str, str]
    kind: str
    counts: Counter = dataclasses.field(default_factory=Counter)
    found: list[dict] = dataclasses.field(default_factory=list)

    def work(self) -> None:
        worker = Worker(self.environment, self.kind)
        try:
            while time.monotonic() < self.until:
                try:
                    seed = self.seeds.get_nowait()
                except Empty:
                    return
                answer = worker.ask(seed)
                self.counts[answer["kind"]] += 1
                if answer["kind"] not in ("same", "refused", "invalid"):
                    self.found.append(answer)
                    print(f"{answer['kind']}: seed {seed} ({answer['door']}): {answer['told']}", flush=True)
        finally:
            worker.close()


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python tests/fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, help="programs (default 100)")
    parser.add_argument("--seconds", type=float, help="how long, instead of how many")
    parser.add_argument("--first", type=int, default=0, help="seed of the first (default 0)")
    parser.add_argument("--seeds", type=int, nargs="+", help="these alone")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--poison", action="store_true", help="fill the plans' memory with NaN before it is used")
    parser.add_argument("--encoders", action="store_true", help="encoders over batches with padding")
    parser.add_argument("--show", type=int, metavar="SEED", help="print the program of a seed, and run nothing")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child()
        return 0
    sys.path.insert(0, str(HERE))
    kind = "encoder" if args.encoders else "any"
    if args.show is not None:
        print(program_of(args.show, kind).source())
        return 0
    count = args.count if args.count is not None else 100 if args.seconds is None else 10**7
    seeds: Queue = Queue()
    for seed in args.seeds or range(args.first, args.first + count):
        seeds.put(seed)
    environment = {**os.environ, "TRAINC_CACHE": "0", "OMP_WAIT_POLICY": "passive"}
    if args.poison:
        environment["TRAINC_DEBUG"] = "poison"
    fuzz = Fuzz(seeds, time.monotonic() + (args.seconds if args.seconds is not None else 1e9), environment, kind)
    start = time.monotonic()
    threads = [threading.Thread(target=fuzz.work) for _ in range(args.jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    told = ", ".join(f"{number} {kind}" for kind, number in sorted(fuzz.counts.items()))
    print(f"{fuzz.counts.total()} programs in {time.monotonic() - start:.0f} s: {told}")
    for answer in fuzz.found:
        print(f"  {answer['kind']}: seed {answer['seed']}: {answer['told']} (build/fuzz/{answer['seed']}.py)")
    return int(bool(fuzz.found))


if __name__ == "__main__":
    sys.exit(main())
