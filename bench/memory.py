"""What a step of GPT-2 124M adds to resident memory: the peak of the first steps, less what was there before the first.

Each door is a process of its own. The model is on the CPU, in fp32, dropout on, with AdamW. "told" is what `trainc.explain`
says before the first step.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "bench")]
from contestant import DOORS, stepping  # noqa: E402


def resident(key: str) -> int:
    """Bytes by /proc/self/status: VmRSS now, VmHWM the most."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(f"{key}:"))


def measure(door: str, args: argparse.Namespace) -> dict:
    """In this process."""
    import finetune_gpt2 as gpt2
    import torch

    model = gpt2.build_model(args.model, 0)
    ids = torch.randint(0, model.config.vocab_size, (args.batch, args.seq), generator=torch.Generator().manual_seed(0))
    batch = {"input_ids": ids, "labels": ids}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    step = stepping(door, model, optimizer, memory=args.memory)
    before = resident("VmRSS")
    told = None
    if door.startswith("trainc") and door != "trainc-backend":  # Dynamo does not say for what it will compile
        import trainc

        of, example = (step, (batch,)) if door == "trainc-step" else (model, batch)
        told = trainc.explain(of, batch=example).memory.growth
    torch.manual_seed(0)
    seconds, losses = [], []
    for _ in range(args.steps):
        start = time.perf_counter()
        loss = step(batch)  # held during the next step, as in most people's loops
        losses.append(loss.item())
        seconds.append(time.perf_counter() - start)
    return {"peak": resident("VmHWM") - before, "told": told, "seconds": min(seconds[1:]), "losses": losses}


def limit(text: str) -> str | float:
    """A size ("4GB"), or a share ("0.8")."""
    return float(text) if text.replace(".", "", 1).isdigit() else text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--doors", nargs="+", choices=DOORS, default=["eager", "trainc", "trainc-fused", "trainc-step"])
    parser.add_argument("--model", help="a local directory with a checkpoint; else random initial weights")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--memory", type=limit, help='the limit of trainc\'s doors, as memory= takes it ("4GB")')
    parser.add_argument("--steps", type=int, default=3, help="two at least: the optimizer's state comes with the first")
    parser.add_argument("--child", choices=DOORS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.steps < 2:
        parser.error("--steps: two at least")
    if args.child:
        print(json.dumps(measure(args.child, args)))
        return
    first = None
    print(f"{'':<12} {'peak':>9} {'of first':>9} {'told':>9} {'a step':>9}  loss, {args.batch} x {args.seq}")
    for door in args.doors:
        done = subprocess.run(
            [sys.executable, __file__, *sys.argv[1:], "--child", door], stdout=subprocess.PIPE, text=True,
            env={**os.environ, "TRANSFORMERS_VERBOSITY": "error"},
        )  # fmt: skip
        if done.returncode != 0:
            sys.exit(f"{door} failed")
        found = json.loads(done.stdout.splitlines()[-1])
        first = first or found["peak"]
        told = "" if found["told"] is None else f"{found['told'] / 1e9:.3f} GB"
        row = f"{found['peak'] / 1e9:>6.3f} GB {found['peak'] / first:>8.1%} {told:>9} {found['seconds']:>7.3f} s"
        print(f"{door:<12} {row}  {found['losses'][-1]:.6f}", flush=True)


if __name__ == "__main__":
    main()
