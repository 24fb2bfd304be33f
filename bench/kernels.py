"""Where a training step's time goes, kernel by kernel (`python bench/kernels.py gpt2 --bf16`): seconds of each kernel, its share
of the peaks, and the share of the wall time that is spent outside of kernels.

Same loop, models and data as `make bench` (cases.py, contestant.py), trainc alone. Kernels of the same name, FLOPs and bytes are
one row: identical layers have them. docs/benchmarks.md says how the peaks are measured.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import cases  # noqa: E402
import contestant  # noqa: E402

MACHINE = cases.ROOT / "build" / "release" / "bench_machine"


def plans_of(model, optimizer) -> list:
    """The executables that a step runs, of all that were compiled for the model."""
    from trainc.base import records, report

    compilations = [*records.of(model), *records.of(optimizer)]
    return [plan for compilation in compilations for plan in report.plans_of_a_step(compilation)]


def measure(name: str, bf16: bool, steps: int, warm_up: int = 3, door: str = "trainc") -> tuple[list[float], list[list[dict]]]:
    """(wall seconds a step, its kernels a step: what `report()` says of them), `steps` times, after `warm_up` steps."""
    import torch

    case = cases.build(name)
    plain = case.model
    model, optimizer = contestant.through(door, plain, torch.optim.AdamW(plain.parameters(), lr=1e-4, fused=True))
    torch.manual_seed(cases.SEED)
    walls, kernels = [], []
    for step in range(warm_up + steps):
        batch = case.batch(step)
        used = plans_of(model, optimizer)
        for plan in used:
            if hasattr(plan, "plan"):
                plan.plan.profile = step >= warm_up
        start = time.perf_counter()
        contestant.training_step(model, optimizer, batch, bf16)
        wall = time.perf_counter() - start
        if step >= warm_up:
            walls.append(wall)
            kernels.append([s for plan in used for s in plan.report()["steps"] if s.get("seconds")])
    return walls, kernels


def table(walls: list[float], kernels: list[list[dict]], peak: float, bandwidth: float, shown: int) -> str:
    """Rows by time. `peak`: FLOP/s; `bandwidth`: bytes/s. Seconds are the medians over the steps of each kernel."""
    rows: dict[tuple, list] = {}
    for i, kernel in enumerate(kernels[0]):
        seconds = statistics.median(step[i]["seconds"] for step in kernels)
        origin = (kernel.get("origins") or [""])[0]
        row = rows.setdefault((kernel["name"], kernel["flops"], kernel["bytes"]), [0, 0.0, 0, 0, origin])
        for place, value in enumerate((1, seconds, kernel["flops"], kernel["bytes"])):
            row[place] += value
    total = sum(row[1] for row in rows.values())
    lines = [f"{'kernel':44} {'calls':>5} {'ms':>8} {'share':>6} {'GFLOP/s':>8} {'of peak':>7} {'GB/s':>6}  from"]
    for (name, *_), (calls, seconds, flops, moved, origin) in sorted(rows.items(), key=lambda item: -item[1][1])[:shown]:
        lines.append(
            f"{name[:44]:44} {calls:5} {1e3 * seconds:8.2f} {seconds / total:6.1%} {flops / seconds / 1e9:8.1f}"
            f" {flops / seconds / peak:7.2f} {moved / seconds / 1e9:6.1f}  {origin}"
        )
    wall = statistics.median(walls)
    outside = statistics.median(1 - sum(k["seconds"] for k in step) / w for w, step in zip(walls, kernels, strict=True))
    lines.append(f"\n{len(rows)} kernels, {1e3 * total:.1f} ms of {1e3 * wall:.1f} ms a step; outside of kernels: {outside:.1%}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=[*cases.CASES, *cases.TESTS])
    parser.add_argument("--bf16", action="store_true", help="under bf16 autocast")
    parser.add_argument("--tuned", action="store_true", help='with tune="max"')
    parser.add_argument("--steps", type=int, default=5, help="measured steps, after three others (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=40, help="kernels shown (default: %(default)s)")
    parser.add_argument("--match", default="", help="only kernels whose name this regular expression finds")
    args = parser.parse_args()
    walls, kernels = measure(args.case, args.bf16, args.steps, door="trainc-max" if args.tuned else "trainc")
    peaks = json.loads(subprocess.run([MACHINE, "2"], capture_output=True, text=True, check=True).stdout)
    peak = peaks["bf16_flops"] if args.bf16 and peaks["bf16_flops"] else peaks["fp32_flops"]
    chosen = [[k for k in step if re.search(args.match, k["name"])] for step in kernels]
    print(table(walls, chosen if args.match else kernels, peak, peaks["copy_bytes"], args.rows))


if __name__ == "__main__":
    main()
