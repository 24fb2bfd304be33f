"""What a step of GPT-2 124M adds to resident memory: the peak of the first steps, less what was there before the first.

Each way is a process of its own. The model is on the CPU, in fp32, dropout on, with AdamW. "told" is what `trainc.explain`
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
sys.path.insert(0, str(ROOT / "examples"))
WAYS = ["eager", "inductor", "compile", "fuse_step", "train_step"]


def resident(key: str) -> int:
    """Bytes by /proc/self/status: VmRSS now, VmHWM the most."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(f"{key}:"))


def measure(way: str, args: argparse.Namespace) -> dict:
    """In this process."""
    import finetune_gpt2 as gpt2
    import torch

    import trainc

    model = gpt2.build_model(args.model, 0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ids = torch.randint(0, model.config.vocab_size, (args.batch, args.seq), generator=torch.Generator().manual_seed(0))
    if way in ("compile", "fuse_step"):
        model, optimizer = trainc.compile(model, optimizer, memory=args.memory, fuse_step=way == "fuse_step")
    elif way == "inductor":
        model = torch.compile(model)

    def step(ids):
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    if way == "train_step":
        step = trainc.train_step(step, memory=args.memory)
    before = resident("VmRSS")
    told = None
    if way == "train_step":
        told = trainc.explain(step, batch=(ids,)).memory.growth
    elif way in ("compile", "fuse_step"):
        told = trainc.explain(model, batch={"input_ids": ids, "labels": ids}).memory.growth
    torch.manual_seed(0)
    seconds, losses = [], []
    for _ in range(args.steps):
        start = time.perf_counter()
        loss = step(ids)  # held during the next step, as in most people's loops
        losses.append(loss.item())
        seconds.append(time.perf_counter() - start)
    return {"peak": resident("VmHWM") - before, "told": told, "seconds": min(seconds[1:]), "losses": losses}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=[way for way in WAYS if way != "inductor"])
    parser.add_argument("--model", help="a local directory with a checkpoint; else random initial weights")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--memory", help='the limit of trainc\'s ways, as memory= takes it ("4GB")')
    parser.add_argument("--steps", type=int, default=3, help="two at least: the optimizer's state comes with the first")
    parser.add_argument("--child", choices=WAYS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.steps < 2:
        parser.error("--steps: two at least")
    if args.child:
        print(json.dumps(measure(args.child, args)))
        return
    first = None
    print(f"{'':<12} {'peak':>9} {'of first':>9} {'told':>9} {'a step':>9}  loss, {args.batch} x {args.seq}")
    for way in args.ways:
        done = subprocess.run(
            [sys.executable, __file__, *sys.argv[1:], "--child", way], stdout=subprocess.PIPE, text=True,
            env={**os.environ, "TRANSFORMERS_VERBOSITY": "error"},
        )  # fmt: skip
        if done.returncode != 0:
            sys.exit(f"{way} failed")
        found = json.loads(done.stdout.splitlines()[-1])
        first = first or found["peak"]
        told = "" if found["told"] is None else f"{found['told'] / 1e9:.3f} GB"
        row = f"{found['peak'] / 1e9:>6.3f} GB {found['peak'] / first:>8.1%} {told:>9} {found['seconds']:>7.3f} s"
        print(f"{way:<12} {row}  {found['losses'][-1]:.6f}", flush=True)


if __name__ == "__main__":
    main()
