"""What new shapes cost: 200 steps of GPT-2 with warm-up, moving betas, evaluation every 20 steps, 20 sequence lengths and a last
smaller batch.

Prints each new signature with what it took: a trace (static, or symbolic: with symbols for the sizes) or none, kernels compiled
of those in its plans, seconds. Then, for a few lengths, the speed of plans with shared kernels against plans of their own.
"""

from __future__ import annotations

import argparse
import copy
import os
import sys
import time
import warnings
from pathlib import Path

os.environ["TRAINC_CACHE"] = "0"
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

import torch

import trainc
from trainc.base import messages, records


def build(layers: int, width: int, vocabulary: int) -> torch.nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(n_layer=layers, n_embd=width, n_head=width // 64, vocab_size=vocabulary)).train()


def batch(vocabulary: int, rows: int, length: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(0, vocabulary - 1, (rows, length), generator=torch.Generator().manual_seed(1000 * rows + length))
    return {"input_ids": ids, "labels": ids}


def told(record: records.Compilation, seconds: float) -> str:
    made = [report["compile"] for report in record.reports()]
    kernels = f"{sum(m['compiled_kernels'] for m in made):3} of {sum(m['distinct_kernels'] for m in made):3} kernels compiled"
    parts = f"trace {record.capture_seconds:5.2f} s, compile {record.compile_seconds:5.2f} s"
    return f"{record.trace:<9} {kernels}   {parts}, its first step {seconds:5.2f} s   {record.signature}"


class Loop:
    """A model in training through one of the doors; `records`: what was compiled."""

    def __init__(self, model: torch.nn.Module, door: str):
        self.model, self.optimizer = model, torch.optim.AdamW(model.parameters(), lr=1e-4)
        self.step = self._step
        if door == "step":
            self.step = trainc.train_step(self._step)
            self.records = records.of(self.step)
        else:
            trainc.compile(model, self.optimizer)
            self.records = records.of(model)

    def _step(self, **inputs: torch.Tensor) -> torch.Tensor:
        loss = self.model(**inputs).loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss


def training(model: torch.nn.Module, args: argparse.Namespace) -> None:
    loop = Loop(model, args.door)
    optimizer = loop.optimizer
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / 20, 1 / (step + 1) ** 0.5))
    lengths = [args.shortest + (args.longest - args.shortest) * i // 19 for i in range(20)]
    shown, warned = 0, 0
    for step in range(args.steps):
        last = step % 50 == 49
        inputs = batch(args.vocabulary, args.batch - 1 if last else args.batch, lengths[7 * step % 20])
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always", messages.RecompileWarning)
            begin = time.perf_counter()
            for group in optimizer.param_groups:
                group["betas"] = (0.9 - step / 1000, 0.99)
            loop.step(**inputs)
            scheduler.step()
            seconds = time.perf_counter() - begin
            if step % 20 == 19:
                model.eval()
                with torch.no_grad():
                    model(**batch(args.vocabulary, args.batch, lengths[0]))
                model.train()
        warned += len([w for w in said if issubclass(w.category, messages.RecompileWarning)])
        for record in loop.records[shown:]:
            print(told(record, seconds), flush=True)
        shown = len(loop.records)
    made = loop.records
    traces = sum(record.trace != "sizes" for record in made)
    kernels = sum(report["compile"]["compiled_kernels"] for record in made for report in record.reports())
    print(f"{args.steps} steps: {len(made)} signatures, {traces} traces, {kernels} kernels compiled, {warned} warnings; ", end="")
    print(f"{len(records.of(optimizer))} plan of the optimizer alone")


def speed(model: torch.nn.Module, args: argparse.Namespace) -> None:
    def seconds(loop: Loop, inputs: dict) -> float:
        begin = time.perf_counter()
        loop.step(**inputs)
        return time.perf_counter() - begin

    ours = Loop(copy.deepcopy(model), args.door)
    lengths = (args.longest // 2, args.longest, args.longest * 3 // 4, args.shortest)
    shapes = list(zip((args.batch, args.batch, args.batch - 1, args.batch), lengths, strict=True))
    for shape in shapes:
        seconds(ours, batch(args.vocabulary, *shape))
    for shape in shapes[1:]:
        inputs, own = batch(args.vocabulary, *shape), Loop(copy.deepcopy(model), args.door)
        seconds(own, inputs)
        times = [(seconds(own, inputs), seconds(ours, inputs)) for _ in range(args.repeats)]
        static, shared = (min(column) for column in zip(*times, strict=True))
        speeds = f"a plan of its own {static * 1e3:7.1f} ms, shared kernels {shared * 1e3:7.1f} ms"
        print(f"{shape}: {speeds}: {static / shared:.0%} of its speed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--door", choices=["compile", "step"], default="compile", help="trainc.compile, or trainc.train_step")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--vocabulary", type=int, default=5003)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--shortest", type=int, default=50)
    parser.add_argument("--longest", type=int, default=128)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=0)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    if args.threads:
        torch.set_num_threads(args.threads)
    training(build(args.layers, args.width, args.vocabulary), args)
    speed(build(args.layers, args.width, args.vocabulary), args)


if __name__ == "__main__":
    main()
