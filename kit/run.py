"""The first contact with a GPU, in one command: `python kit/run.py` runs the parts below in their order, each in a process of its
own with a limit of time, writes what each found as it goes, and prints a summary of under 100 lines.

    python kit/run.py --out results               what has not succeeded yet, until --seconds are over; again: goes on
    python kit/run.py --out results --only a4 b2  these parts, whatever was found before
    python kit/run.py --beside 5                  up to five parts at once, of those that measure nothing
    python kit/run.py --rehearse                  the same on a stand-in for a GPU (tests/python/standin.py), with small sizes

Needs Python with torch and transformers, nothing else; docs/cuda.md, "The kit". A part that fails does not stop the next."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
LINES = 98  # of the summary


@dataclass(frozen=True)
class Part:
    name: str  # its letter's file holds the results
    what: str
    command: tuple[str, ...]  # after the interpreter
    limit: float = 300  # seconds
    rehearsed: bool = True  # also without a GPU
    alone: bool = False  # it measures time, or wants all memory: nothing may run beside it


def bench(case: str, precision: str, *contestants: str) -> tuple[str, ...]:
    return ("bench/gpu.py", "--cases", case, "--precisions", precision, "--contestants", *contestants, "--patience", "200")


QUICK = ("trainc", "trainc-step", "eager", "inductor")
MEASURED = [("gpt2", "bf16"), ("gpt2", "fp32"), ("roberta", "bf16"), ("llama", "bf16"), ("vit", "bf16"), ("resnet50", "bf16"),
            ("roberta", "fp32"), ("llama", "fp32"), ("vit", "fp32"), ("resnet50", "fp32")]  # fmt: skip

PARTS = [
    Part("a1", "the module is imported, or built here", ("kit/module.py",), 420, alone=True),
    Part("a2", "the machine, driver, context, NVRTC, cuBLASLt", ("kit/machine.py", "facts"), 120, alone=True),
    Part("a3", "streams, contexts, late errors, a lost device", ("kit/machine.py", "behaviour"), 240, alone=True),
    Part("a4", "the case table against eager", ("kit/kernels.py", "table"), 420),
    Part("a5", "kernels under compute-sanitizer", ("kit/kernels.py", "sanitize"), 420, rehearsed=False),
    Part("b1", "dropout's masks bit for bit", ("kit/training.py", "masks"), 240),
    Part("b2", "GPT-2 of two layers, ten steps, through each door", ("kit/training.py", "gpt2"), 420),
    *(Part(f"c{i}", f"{name}: the rule of losses", ("kit/training.py", "model", name), 300)
      for i, name in enumerate(("gpt2", "roberta", "llama", "vit"), 1)),
    *(Part(f"d{i}", f"{case}, {precision}: a step's time", bench(case, precision, *QUICK), 470, rehearsed=i == 1, alone=True)
      for i, (case, precision) in enumerate(MEASURED, 1)),
    *(Part(f"e{i}", f"{case}, {precision}: Inductor's max-autotune", bench(case, precision, "autotune"), 470, False, alone=True)
      for i, (case, precision) in enumerate(MEASURED[:5], 1)),
]  # fmt: skip


def results(out: Path) -> dict[str, dict]:
    """What is known of each part: its last line in its letter's file."""
    found = {}
    for file in sorted(out.glob("?.jsonl")):
        for line in file.read_text().splitlines():
            if line.strip():
                row = json.loads(line)
                found[row["part"]] = row
    return found


def environment(part: Part, args: argparse.Namespace, work: Path) -> dict[str, str]:
    paths = [ROOT / "python", ROOT / "tests" / "python", HERE]
    old = os.environ.get("PYTHONPATH", "")
    given = {
        "PYTHONPATH": os.pathsep.join([*map(str, paths), *filter(None, [old])]),
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        "TRAINC_CACHE_DIR": str(work / "cache"),
        "KIT_WORK": str(work / f"of-{part.name}"),
        "KIT_REHEARSE": args.rehearse or "",
    }
    return {**os.environ, **given}


def run(command: list[str], limit: float, env: dict[str, str], log: Path) -> tuple[int | None, float]:
    """(its exit status, None where it ran out of time; seconds). All that it started ends with it."""
    start = time.monotonic()
    with log.open("ab") as stream:
        stream.write(f"\n=== {' '.join(command)}\n".encode())
        stream.flush()
        process = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT, env=env, cwd=ROOT, start_new_session=True)
        try:
            status: int | None = process.wait(limit)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
    return status, time.monotonic() - start


def perform(part: Part, most: float, args: argparse.Namespace, work: Path) -> dict:
    """Runs one part; what it found is its `facts`, and `error` is the first one with all that is needed to mend it."""
    answer, log, env = work / f"{part.name}.json", work / f"{part.name}.log", environment(part, args, work)
    answer.unlink(missing_ok=True)
    log.unlink(missing_ok=True)
    Path(env["KIT_WORK"]).mkdir(exist_ok=True)
    command = [sys.executable, *part.command]
    if part.command[0].startswith("bench"):
        command += ["--json", str(answer), "--beside", str(args.beside)]
        if args.rehearse:
            command += ["--rehearse", "--steps", "1", *(["--contestants", "trainc", "eager"] if args.rehearse == "short" else [])]
    else:
        command += ["--answer", str(answer)]
    limit = min(part.limit, most)
    status, seconds = run(command, limit, env, log)
    try:
        facts = json.loads(answer.read_text())
    except (OSError, ValueError):
        facts = {}
    row = {"part": part.name, "what": part.what, "ok": status == 0, "seconds": round(seconds, 1), "facts": facts}
    tail = log.read_text(errors="replace").splitlines()[-60:]
    if status != 0:
        why = f"it was not over after {limit:.0f} s" if status is None else f"exit status {status}"
        row["error"] = facts.get("error") or {"what": why, "lines": tail}
        row["why"] = why
        row["table"] = [measured(r) for r in facts.get("rows", [])]  # what was over before
    elif part.command[0].startswith("bench"):
        row["table"] = [line for line in tail if not line.startswith("===")]
        died = [r for r in facts.get("rows", []) if "died" in r]
        if died:
            row["ok"], row["error"] = False, {"what": died[0]["died"], "lines": tail}
    again = facts.get("again")
    if status != 0 and again and not args.rehearse:  # narrower, each launch waited for, and watched where that is possible
        watcher = shutil.which("compute-sanitizer")
        narrow = [*([watcher, "--tool", "memcheck"] if watcher else []), sys.executable, *again, "--answer", str(answer)]
        second = work / f"{part.name}.again.log"
        second.unlink(missing_ok=True)
        run(narrow, min(100, limit / 3), {**env, "CUDA_LAUNCH_BLOCKING": "1"}, second)
        row["again"] = second.read_text(errors="replace").splitlines()[-80:]
    return row


def groups(parts: list[Part]) -> list[list[Part]]:
    """In their order, those that may run beside each other together."""
    found: list[list[Part]] = []
    for part in parts:
        if found and not part.alone and not found[-1][-1].alone:
            found[-1].append(part)
        else:
            found.append([part])
    return found


def measured(row: dict) -> str:
    """A contestant of bench/gpu.py in a line."""
    who = f"{row['case']} {row['precision']} {row['door']}"
    if "died" in row:
        return f"{who}: {row['died']}"
    seconds = row.get("events") or row.get("wall") or 0
    return f"{who}: {seconds * 1e3:.2f} ms a step, {row['peak_bytes'] / 1e9:.2f} GB, first after {row['first']:.1f} s"


def first_words(row: dict) -> str:
    error = row.get("error") or {}
    return " ".join(str(error.get("what", "")).split())[:400]


def summary(found: dict[str, dict], chosen: list[Part], most: int | None = LINES) -> list[str]:
    lines = [f"{'part':5}{'':8}{'s':>7}  what"]
    for part in chosen:
        row = found.get(part.name)
        state = "not run" if row is None else "ok" if row["ok"] else "FAILED"
        seconds = "" if row is None else f"{row['seconds']:.0f}"
        lines.append(f"{part.name:5}{state:8}{seconds:>7}  {part.what}")
        if row and not row["ok"]:
            lines.append(f"        {first_words(row)}")
        if row and row["facts"].get("line"):
            lines.append(f"        {row['facts']['line'][:220]}")
    failed = [row for part in chosen if (row := found.get(part.name)) and not row["ok"]]
    if failed:
        error, again = failed[0].get("error") or {}, failed[0].get("again", [])
        lines += ["", f"The first error, of {failed[0]['part']}:", str(error.get("what", ""))]
        lines += [*error.get("lines", [])[-18:], *again[-12:]]
    for row in found.values():
        lines += [line[:200] for line in row.get("table", [])[-14:]]
    flat = [line for text in lines for line in str(text).splitlines() or [""]]
    if most is None or len(flat) <= most:
        return flat
    return [*flat[: most - 1], f"... {len(flat) - most + 1} more lines in summary.txt"]


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("gpu-results"), help="where results are written, and looked for")
    parser.add_argument("--also", type=Path, help="a folder that gets a copy of them after each part")
    parser.add_argument("--only", nargs="+", metavar="PART", help="parts by name, or all of a letter")
    beside = "parts at once, where nothing is measured (default: 1)"
    parser.add_argument("--beside", type=int, default=1, metavar="N", help=beside)
    parser.add_argument("--seconds", type=float, default=570, help="no part begins that could end later (default: 570)")
    parser.add_argument("--limit", type=float, default=480, help="seconds that a part has at most (default: 480)")
    parser.add_argument("--rehearse", nargs="?", const="short", choices=["short", "long"], help="without a GPU")
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> int:
    args, start = arguments(words), time.monotonic()
    out = args.out.resolve()
    work = out / "work"
    work.mkdir(parents=True, exist_ok=True)
    found = results(out)
    chosen = [part for part in PARTS if not args.rehearse or part.rehearsed]
    if args.rehearse == "short":
        chosen = [part for part in chosen if part.name[0] != "c"]
    if args.only:
        chosen = [part for part in chosen if part.name in args.only or part.name[0] in args.only]
    writing = threading.Lock()

    def carry_out(part: Part) -> None:
        left = args.seconds - (time.monotonic() - start)
        if left < 45:
            print(f"{part.name}: no time left; the same command goes on", flush=True)
            return
        print(f"{part.name}: {part.what} ...", flush=True)
        row = perform(part, min(args.limit, left - 10), args, work)
        with writing:
            found[part.name] = row
            print(f"{part.name}: {'ok' if row['ok'] else 'FAILED: ' + first_words(row)} ({row['seconds']} s)", flush=True)
            with (out / f"{part.name[0]}.jsonl").open("a") as stream:
                stream.write(json.dumps(row) + "\n")
            (out / "summary.txt").write_text("\n".join(summary(found, PARTS, None)) + "\n")
            if args.also:
                args.also.mkdir(parents=True, exist_ok=True)
                for file in [*out.glob("?.jsonl"), out / "summary.txt"]:
                    shutil.copy(file, args.also)

    for group in groups([part for part in chosen if args.only or not found.get(part.name, {}).get("ok")]):
        with ThreadPoolExecutor(args.beside) as pool:
            list(pool.map(carry_out, group))
    print("\n" + "\n".join(summary(found, chosen)))
    return 0 if all(found.get(part.name, {}).get("ok") for part in chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
