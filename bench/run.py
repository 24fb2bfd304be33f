"""A training step of nine models, in fp32 and bf16 autocast: eager, Inductor and trainc, side by side (`make bench`).

Every contestant is a process of its own; their steps are interleaved, so that a noisy machine is noisy for all: ratios hold
within one run only. docs/benchmarks.md says how each figure comes about. Results go to build/bench: results.json after each row,
and results.png. Where JAX is installed, XLA:CPU takes part in the cases that are GPT-2 (xla.py).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import cases  # noqa: E402
import report  # noqa: E402
import xla  # noqa: E402
from contestant import DOORS, IN_JAX, OTHER, OTHER_TREE, Contestant, Died  # noqa: E402

MACHINE = cases.ROOT / "build" / "release" / "bench_machine"
QUICK_SECONDS = 300
QUICK_RESERVE = 45  # a row is not begun with less than this left


def measure(name: str, bf16: bool, doors: list[str], args: argparse.Namespace, flops: int | None) -> dict:
    """One row: `args.steps` rounds of one step of everybody, after a first step each. FLOPs are counted where not known yet."""
    found: dict[str, dict] = {door: {"seconds": [], "losses": []} for door in doors}
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        # empty caches: the first step is a cold one
        os.environ["TORCHINDUCTOR_CACHE_DIR"], os.environ["TRAINC_CACHE_DIR"] = f"{folder}/inductor", f"{folder}/trainc"
        racing = {door: stack.enter_context(Contestant(name, door, bf16, args.patience)) for door in doors}

        def told(door: str, question, *words):
            """The answer; a contestant that dies is a result, and out of the race."""
            try:
                return question(*words)
            except Died as death:
                found[door] = {"died": str(death)}
                del racing[door]
                print(f"  {door} died: {death}", flush=True)

        for door, contestant in list(racing.items()):
            told(door, contestant.answer)  # built
        for step in range(args.steps + 1):
            line = "  first step:" if step == 0 else f"  step {step}/{args.steps}:"
            order = list(racing.items())
            first = step % max(1, len(order))  # nobody always runs behind the same one
            for door, contestant in order[first:] + order[:first]:
                time.sleep(args.pause)
                if (answer := told(door, contestant.ask, "step")) is not None:
                    seconds, loss = answer
                    if step == 0:
                        found[door]["first"] = seconds
                    else:
                        found[door]["seconds"].append(seconds)
                    found[door]["losses"].append(loss)
            print(line + "".join(f"  {door} {_last(found[door]):.3f} s" for door in doors if door in racing), flush=True)
        row = {"case": name, "precision": "bf16" if bf16 else "fp32", "small": args.table[name].small, "contestants": found}
        for door, contestant in list(racing.items()):
            if (about := told(door, contestant.ask, "about")) is not None:
                row["parameters"] = about.pop("parameters")
                found[door].update(about)
        if "eager" in racing and not args.no_floor and flops is None:
            flops = told("eager", racing["eager"].ask, "flops")
        row["flops"] = flops
    return row


def _last(found: dict) -> float:
    return (found["seconds"] or [found["first"]])[-1]


def measure_peaks(results: dict) -> None:
    """The machine's peaks: the best of all that this run has seen, and the median of its seconds."""
    done = subprocess.run([MACHINE, str(results["threads"])], capture_output=True, text=True, check=True)
    peaks = json.loads(done.stdout)
    for key in ("fp32_flops", "bf16_flops", "copy_bytes"):
        peaks[key] = max(peaks[key], results["peaks"].get(key, 0))
    before = results["peaks"].get("seconds", {})
    peaks["seconds"] = {key: [*before.get(key, []), peaks[key]] for key in ("fp32_sustained", "bf16_sustained")}
    peaks |= {key: statistics.median(seconds) for key, seconds in peaks["seconds"].items()}
    results["peaks"] = peaks


def store(results: dict, path: Path) -> None:
    """Whole or not at all: a run that is cut off leaves what it had."""
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_suffix(".tmp")
    half.write_text(json.dumps(results, indent=1))
    half.replace(path)


def doors_of(name: str, args: argparse.Namespace) -> list[str]:
    """The contestants of a case: --quick leaves Inductor out where it compiles for a minute or two; XLA has what is written in
    JAX."""
    case, absent = args.table[name], set()
    if args.quick and not case.quick_inductor:
        absent.add("inductor")
    if not case.in_jax:
        absent |= set(IN_JAX)
    return [door for door in args.contestants if door not in absent]


def finished(path: Path, args: argparse.Namespace, fresh: dict) -> list[dict]:
    """Rows of an earlier run that --resume keeps."""
    if not args.resume or not path.exists():
        return []
    before = json.loads(path.read_text())
    for key in ("threads", "torch", "steps", "doors"):
        if before[key] != fresh[key]:
            raise SystemExit(f"{path} has {key} {before[key]}, this run {fresh[key]}: run it alike, or without --resume")
    fresh["peaks"] = before["peaks"]
    return before["rows"]


def run(args: argparse.Namespace) -> dict:
    import torch

    begun = time.monotonic()
    results = {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "steps": args.steps,
        "doors": args.contestants,
        "left_out": [],
        "peaks": {},
        "rows": [],
    }
    results["rows"] = finished(args.json, args, results)
    for name in args.cases:
        if args.table[name].vocabulary:
            cases.tokens_of(args.table[name].vocabulary)  # made once, before the contestants look for them
    spared = [name for name in args.cases if "inductor" in args.contestants and "inductor" not in doors_of(name, args)]
    if spared:
        results["left_out"].append(f"Inductor on {', '.join(spared)} (--quick)")
    for precision in args.precisions:
        for name in args.cases:
            if any((row["case"], row["precision"]) == (name, precision) for row in results["rows"]):
                print(f"{name} {precision}: measured before", flush=True)
                continue
            if args.quick and time.monotonic() - begun > QUICK_SECONDS - QUICK_RESERVE:
                results["left_out"].append(f"{name} {precision} (--quick ends after {QUICK_SECONDS} s)")
                continue
            print(f"{name} {precision}: {args.table[name].title}", flush=True)
            if not args.no_floor:
                measure_peaks(results)
            counted = next((row["flops"] for row in results["rows"] if row["case"] == name and row["flops"]), None)
            results["rows"].append(measure(name, precision == "bf16", doors_of(name, args), args, counted))
            store(results, args.json)
    if not args.no_floor:
        measure_peaks(results)
    store(results, args.json)
    return results


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=list(cases.CASES), metavar="CASE", help=", ".join(cases.CASES))
    parser.add_argument("--precisions", nargs="+", choices=["fp32", "bf16"], default=["fp32", "bf16"])
    parser.add_argument(
        "--contestants", nargs="+", choices=[*DOORS, OTHER], help="default: eager, inductor, trainc; xla where JAX is there"
    )
    parser.add_argument(
        "--against", type=Path, metavar="TREE", help="another checkout of trainc, built, that takes part as trainc-other"
    )
    parser.add_argument("--steps", type=int, help="measured steps, after the first (default: 8; with --quick 2)")
    parser.add_argument("--quick", action="store_true", help="five minutes in all; the end of the table says what was left out")
    parser.add_argument("--resume", action="store_true", help="keep the finished rows of the file of results")
    parser.add_argument("--patience", type=float, default=1200, metavar="SECONDS", help="how long a step may take (1200)")
    parser.add_argument("--pause", type=float, default=0.02, help="before each step, until the one before spins no more")
    parser.add_argument("--no-floor", action="store_true", help="measure no peaks and count no FLOPs")
    parser.add_argument("--json", type=Path, default=cases.ROOT / "build" / "bench" / "results.json", metavar="FILE")
    args = parser.parse_args(words)
    args.table = {**cases.CASES, **cases.TESTS}
    unknown = [name for name in args.cases if name not in args.table]
    if unknown:
        parser.error(f"no case {', '.join(unknown)}; there are {', '.join(cases.CASES)}")
    if args.contestants is None:
        args.contestants = ["eager", "inductor", *(["xla"] if xla.installed() else []), "trainc"]
    elif set(IN_JAX) & set(args.contestants) and not xla.installed():
        parser.error("the contestants xla and trainc-jit want JAX, which is not installed here: `pip install jax`")
    if args.against is not None:
        if not list(args.against.glob("python/trainc/_core*.so")):
            parser.error(f"{args.against} holds no trainc that is built: `make build` there")
        os.environ[OTHER_TREE] = str(args.against.resolve())
        args.contestants = [*(door for door in args.contestants if door != OTHER), OTHER]
    elif OTHER in args.contestants:
        parser.error(f"the contestant {OTHER} wants --against TREE")
    args.steps = args.steps if args.steps is not None else 2 if args.quick else 8
    if args.steps < 1:
        parser.error("--steps must be at least 1")
    if not args.no_floor and not MACHINE.exists():
        parser.error(f"{MACHINE.name} is not built: `make bench` builds it; or give --no-floor")
    return args


def main() -> None:
    args = arguments()
    results = run(args)
    print("\n" + report.text(results))
    try:
        report.picture(results, args.json.with_suffix(".png"))
        print(f"\n{args.json} and {args.json.with_suffix('.png').name}")
    except ImportError:
        print(f"\n{args.json}; no picture: matplotlib is not installed (`make bench` does it)")


if __name__ == "__main__":
    main()
