"""The time of one training step (forward, loss, backward, AdamW, zero_grad): eager, trainc and, with --inductor, Inductor.

Every contestant is a process of its own; their steps are interleaved, so that a noisy machine is noisy for all. Ratios hold
within one run only. The first line of each is its first step, which compiles.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "examples"))
import finetune_gpt2 as gpt2  # noqa: E402

DOORS = ["eager", "trainc", "trainc-backend", "inductor"]


def through(door: str, model, optimizer):
    """`model, optimizer` as the door hands them back."""
    import torch

    if door == "trainc":
        import trainc

        return trainc.compile(model, optimizer)
    if door == "trainc-backend":
        return torch.compile(model, backend="trainc"), optimizer
    if door == "inductor":
        return torch.compile(model), optimizer
    return model, optimizer


def contestant(door: str, args: argparse.Namespace, pipe) -> None:
    """Answers each message with one step's seconds and loss, until told to stop; then with its peak memory."""
    os.environ.setdefault("TRAINC_CACHE", "0")  # the first step compiles
    import torch

    model = gpt2.build_model(args.model, args.seed)
    model, optimizer = through(door, model, torch.optim.AdamW(model.parameters(), lr=1e-4))
    tokens = gpt2.token_stream(args.model, None)
    torch.manual_seed(args.seed)
    step = 0
    while pipe.recv():
        ids = gpt2.batch_of(tokens, step, args.batch, args.seq, args.seed)
        start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=args.amp):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds = time.perf_counter() - start
        pipe.send((seconds, loss.item()))
        step += 1
    pipe.send(gpt2.peak_resident_bytes())


def measure(doors: list[str], args: argparse.Namespace) -> dict[str, dict]:
    context = multiprocessing.get_context("spawn")
    pipes, processes = {}, []
    for door in doors:
        pipes[door], other = context.Pipe()
        processes.append(context.Process(target=contestant, args=(door, args, other), daemon=True))
        processes[-1].start()
        other.close()
    results: dict[str, dict] = {door: {"seconds": [], "losses": []} for door in doors}
    for _ in range(args.steps + 1):
        for door, pipe in pipes.items():
            pipe.send(True)
            try:
                seconds, loss = pipe.recv()
            except EOFError:
                raise SystemExit(f"{door} died; its message is above") from None
            results[door]["seconds"].append(seconds)
            results[door]["losses"].append(loss)
            print(f"{door:>15}  {seconds:7.3f} s  loss {loss:.6f}", flush=True)
    for door, pipe in pipes.items():
        pipe.send(False)
        results[door]["peak_bytes"] = pipe.recv()
    for process in processes:
        process.join()
    return results


def table(results: dict[str, dict]) -> str:
    lines = [f"{'':>15} {'first':>9} {'best':>9} {'median':>9} {'peak':>9}   speed-up over eager (medians, bests)"]
    base = results.get("eager")
    for door, result in results.items():
        first, *rest = result["seconds"]
        line = (
            f"{door:>15} {first:7.2f} s {min(rest):7.3f} s {statistics.median(rest):7.3f} s {result['peak_bytes'] / 1e9:6.2f} GB"
        )
        if base and door != "eager":
            eager = base["seconds"][1:]
            line += f"   {statistics.median(eager) / statistics.median(rest):.2f}x, {min(eager) / min(rest):.2f}x"
        lines.append(line)
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a directory of Hugging Face weights (default: GPT-2 124M from random weights)")
    parser.add_argument("--steps", type=int, default=8, help="measured steps, after the first")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--amp", action="store_true", help="under bfloat16 autocast")
    parser.add_argument("--inductor", action="store_true", help="measure torch.compile's own backend as well")
    parser.add_argument("--doors", nargs="+", choices=DOORS, default=["eager", "trainc"])
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "bench" / "step.json")
    args = parser.parse_args()
    gpt2.token_stream(args.model, None)  # makes the tokenizer once, before the contestants look for it
    results = measure(args.doors + ["inductor"] * (args.inductor and "inductor" not in args.doors), args)
    print("\n" + table(results))
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
