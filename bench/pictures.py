"""The pictures of docs/guide, from runs of now (`make docs`): what a step's memory is made of and what `memory=` costs, what new
shapes cost, how far losses lie from eager's. A small GPT of transformers on one thread; a minute or two.

    python bench/pictures.py docs/guide
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
os.environ.setdefault("MPLBACKEND", "Agg")

import matplotlib
import matplotlib.pyplot as plt
import torch

import trainc
from trainc.base.messages import RecompileWarning
from trainc.cli import loss_rule

matplotlib.rcParams |= {
    "svg.hashsalt": "trainc", "svg.fonttype": "none", "font.size": 9, "font.family": "sans-serif", "axes.spines.top": False,
    "axes.spines.right": False, "figure.figsize": (6.4, 3.0), "figure.constrained_layout.use": True,
}  # fmt: skip
VOCABULARY = 512
COLOURS = {"model": "#777777", "gradients": "#4477aa", "optimizer": "#66ccee", "batch": "#bbbbbb", "saved": "#ee6677",
           "temporary": "#ccbb44", "results": "#228833"}  # fmt: skip
WORDS = {"optimizer": "optimizer's state", "saved": "kept for the backward"}


def build(layers: int, width: int) -> torch.nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"n_layer": layers, "n_embd": width, "n_head": width // 32, "vocab_size": VOCABULARY, "n_positions": 256}
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, loss_type="ForCausalLM")).train()


def batch(seed: int, length: int, rows: int = 4) -> dict[str, torch.Tensor]:
    ids = torch.randint(0, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed))
    return {"input_ids": ids, "labels": ids}


def adamw(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, inputs: dict[str, torch.Tensor]) -> float:
    loss = model(**inputs).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


# ---- memory ------------------------------------------------------------------------------------------------------------


def told(memory: float | str | None) -> tuple[object, int] | None:
    """(Memory, FLOP of a step) by the plans, without a step; None where the limit cannot be met."""
    model = build(4, 128)
    model, _ = trainc.compile(model, adamw(model), memory=memory)
    try:
        explanation = trainc.explain(model, batch=batch(0, 256, 24))
    except trainc.UserError:
        return None
    return explanation.memory, explanation.totals.flops


def memory(file: Path) -> str:
    found = {share: told(share) for share in (None, 0.85, 0.7, 0.6, 0.5, 0.45, 0.4, 0.35, 0.3)}
    found = {share: each for share, each in found.items() if each is not None}
    figure, (left, right) = plt.subplots(1, 2, width_ratios=(3, 2))
    names = ["no limit" if share is None else f"{share:g}" for share in found]
    height = [0.0] * len(found)
    for part, colour in COLOURS.items():
        sizes = [getattr(each, part) / 1e6 for each, _ in found.values()]
        left.bar(names, sizes, bottom=height, color=colour, label=WORDS.get(part, part), width=0.7)
        height = [a + b for a, b in zip(height, sizes, strict=True)]
    left.set(ylabel="MB at a step's peak", xlabel="memory=")
    left.legend(fontsize=7, frameon=False, ncols=2, loc="upper center", bbox_to_anchor=(0.5, 1.35))
    whole = found[None][1]
    right.plot(height, [100 * each.again_flops / whole for each, _ in found.values()], "o-", color=COLOURS["saved"])
    right.set(xlabel="MB at a step's peak", ylabel="computed again, % of a step's FLOP", ylim=(0, None))
    figure.savefig(file, metadata={"Date": None})
    least, (smallest, _) = list(found.items())[-1]
    return (
        f"A GPT of 4 layers, 128 wide, 24 x 256 tokens, AdamW: {height[0]:.0f} MB without a limit, {height[-1]:.0f} MB with "
        f"`memory={least}`, for which {100 * smallest.again_flops / whole:.1f}% of a step's FLOP are computed again."
    )


# ---- shapes ------------------------------------------------------------------------------------------------------------


def shapes(file: Path) -> str:
    """By CPU time, which other programs change little."""
    model = build(2, 128)
    model, optimizer = trainc.compile(model, adamw(model))
    lengths = [128, 96, 160, 64, 192, 80, 240, 112, 144, 208]
    first, later = [], []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecompileWarning)
        for length in lengths:
            times = []
            for _ in range(6):
                begin = time.process_time()
                step(model, optimizer, batch(length, length))
                times.append(time.process_time() - begin)
            first.append(times[0])
            later.append(min(times[1:]))
    figure, axes = plt.subplots()
    places = range(len(lengths))
    axes.bar(places, first, color=COLOURS["gradients"], label="its first step")
    axes.plot(places, later, "o", color=COLOURS["saved"], label="a later step of it")
    axes.set(yscale="log", ylabel="seconds of a CPU", xlabel="length of the sequence, in the order in which they come")
    axes.set_xticks(list(places), lengths)
    axes.legend(frameon=False)
    figure.savefig(file, metadata={"Date": None})
    new = sorted(first[2:])[len(first[2:]) // 2]
    return (
        f"A GPT of 2 layers, 128 wide, empty cache: the second length, traced with symbols, took {first[1] / first[0]:.1f} times "
        f"the CPU time of the first, each further one {new / first[0]:.2f} times (the median)."
    )


# ---- numerics ------------------------------------------------------------------------------------------------------------


def losses(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
    torch.manual_seed(0)  # of the dropout masks
    return [step(model, optimizer, batch(i % 8, 64)) for i in range(steps)]


def numerics(file: Path, steps: int = 150) -> str:
    plain = build(2, 64)
    models = [copy.deepcopy(plain) for _ in range(1 + len(loss_rule.SEEDS))]
    for model, seed in zip(models[1:], loss_rule.SEEDS, strict=True):
        loss_rule.disturb(model, seed)
    eager, *disturbed = [losses(model, adamw(model), steps) for model in models]
    ours = losses(*trainc.compile(plain, adamw(plain)), steps)
    figure, (left, right) = plt.subplots(1, 2)
    left.plot(eager, color=COLOURS["gradients"], linewidth=3, label="eager")
    left.plot(ours, "--", color=COLOURS["saved"], label="trainc")
    left.set(xlabel="step", ylabel="loss")
    left.legend(frameon=False)
    for run in disturbed:
        right.plot(loss_rule.relative(run, eager), ".", color="#bbbbbb", markersize=3)
    right.plot([], [], ".", color="#bbbbbb", label="eager, its weights disturbed in the last bit")
    right.plot(loss_rule.relative(ours, eager), ".", color=COLOURS["saved"], markersize=4, label="trainc")
    right.plot(loss_rule.bounds(eager, disturbed), color="black", linewidth=1, label="the bound")
    right.set(yscale="log", xlabel="step", ylabel="relative difference from eager's loss", ylim=(1e-8, 1e-5))
    right.legend(frameon=False, fontsize=7, loc="upper left", bbox_to_anchor=(0, 1.15))
    figure.savefig(file, metadata={"Date": None})
    broken = loss_rule.violations(ours, eager, disturbed)
    return (
        f"A GPT of 2 layers, 64 wide, dropout on, {steps} steps: loss {eager[0]:.3f} to {eager[-1]:.3f}; the largest relative "
        f"difference from eager's is {max(loss_rule.relative(ours, eager)):.1e}; {len(broken)} steps break the rule."
    )


PICTURES = {"memory": memory, "shapes": shapes, "numerics": numerics}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", choices=PICTURES)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name, draw in PICTURES.items():
        if args.only in (None, name):
            print(f"{name}: {draw(args.folder / f'{name}.svg')}", file=sys.stdout, flush=True)


if __name__ == "__main__":
    main()
