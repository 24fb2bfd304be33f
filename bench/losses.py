"""GPT-2 124M on real text: the loss of every step, through trainc's doors, against eager's own spread.

The rule is tests/python/loss_rule.py's: of each step in fp32; with --bf16 of the whole curve, whose distance from eager's in fp32
is measured by that of eager's own under bf16 autocast. Each run is a process of its own; finished runs are kept in build/losses
and not made again unless --fresh is given (trainc's are always made again). Ends with code 1 where the rule is broken.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "tests" / "python"), str(ROOT / "bench")]
import finetune_gpt2 as gpt2  # noqa: E402
import loss_rule as rule  # noqa: E402
from contestant import DOORS, stepping  # noqa: E402

MEMORY = 0.85  # of what it would need
WAYS = [*(door for door in DOORS if door.startswith("trainc")), "trainc-memory"]


def train(door: str, disturbance: int, bf16: bool, args: argparse.Namespace, path: Path) -> None:
    import torch
    from tqdm import tqdm

    model = gpt2.build_model(args.model, args.seed)
    if disturbance:
        rule.disturb(model, disturbance)
    memory = MEMORY if door == "trainc-memory" else None
    door = door.removesuffix("-memory")
    step = stepping(door, model, torch.optim.AdamW(model.parameters(), lr=1e-4), bf16, memory=memory)
    tokens = gpt2.token_stream(args.model, None)
    torch.manual_seed(args.seed)
    losses = []
    for i in tqdm(range(args.steps), desc=path.stem, mininterval=10):
        ids = gpt2.batch_of(tokens, i, args.batch, args.seq, args.seed)
        losses.append(step({"input_ids": ids, "labels": ids}).item())
    path.write_text(json.dumps(losses))


def losses_of(door: str, disturbance: int, args: argparse.Namespace, bf16: bool = False) -> list[float]:
    model = Path(args.model).name if args.model else "124M"
    corpus = platform.python_version()  # its standard library is the text
    name = f"{door}-{disturbance}-{args.batch}x{args.seq}-{args.steps}-seed{args.seed}-{model}-{corpus}{'-bf16' if bf16 else ''}"
    path = ROOT / "build" / "losses" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    if args.fresh or door != "eager" or not path.exists():
        process = multiprocessing.get_context("spawn").Process(target=train, args=(door, disturbance, bf16, args, path))
        process.start()
        process.join()
        if process.exitcode:
            raise SystemExit(f"{name} ended with code {process.exitcode}; its message is above")
    return json.loads(path.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a directory of Hugging Face weights (default: GPT-2 124M from random weights)")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--doors", nargs="+", choices=WAYS, default=["trainc", "trainc-backend"])
    parser.add_argument("--bf16", action="store_true", help="trainc, and eager beside its fp32 runs, under bf16 autocast")
    parser.add_argument("--fresh", action="store_true", help="train eager again as well")
    args = parser.parse_args()

    compiled = {door: losses_of(door, 0, args, args.bf16) for door in args.doors}
    eager = losses_of("eager", 0, args)
    disturbed = [losses_of("eager", seed, args) for seed in rule.SEEDS]
    kept = under_bf16(compiled, eager, disturbed, args) if args.bf16 else step_by_step(compiled, eager, disturbed)
    raise SystemExit(0 if kept else 1)


def step_by_step(compiled: dict[str, list[float]], eager: list[float], disturbed: list[list[float]]) -> bool:
    """Prints each step; whether all are within the rule."""
    table(eager, rule.bounds(eager, disturbed), "allowed", compiled)
    broken = {door: rule.violations(losses, eager, disturbed) for door, losses in compiled.items()}
    for door, lines in broken.items():
        print(f"{door}: {len(eager) - len(lines)} of {len(eager)} steps within the rule")
    return not any(broken.values())


def under_bf16(
    compiled: dict[str, list[float]], eager: list[float], disturbed: list[list[float]], args: argparse.Namespace
) -> bool:
    """Prints each step; whether the curves are as near to fp32 as eager's own is, by the rule."""
    eager_bf16 = losses_of("eager", 0, args, True)
    table(eager, rule.relative(eager_bf16, eager), "its bf16", compiled)
    print(f"eager: {rule.distance(eager_bf16, eager):.2e} from its fp32 run, root mean square of the steps")
    kept = True
    for door, losses in compiled.items():
        ratio = rule.bf16_ratio(losses, eager, disturbed, eager_bf16)
        kept &= ratio <= rule.bf16_limit(1)
        print(f"{door}: {rule.distance(losses, eager):.2e}, {ratio:.2f} of what is allowed (limit {rule.bf16_limit(1):.2f})")
    return kept


def table(eager: list[float], yardstick: list[float], name: str, compiled: dict[str, list[float]]) -> None:
    print(f"\n{'step':>4} {'eager':>12} {name:>9}" + "".join(f" {door:>16} {'differs':>9}" for door in compiled))
    differences = [rule.relative(losses, eager) for losses in compiled.values()]
    for i, loss in enumerate(eager):
        pairs = zip(compiled.values(), differences, strict=True)
        columns = [f" {losses[i]:>16.7f} {differs[i]:>9.1e}" for losses, differs in pairs]
        print(f"{i + 1:>4} {loss:>12.7f} {yardstick[i]:>9.1e}" + "".join(columns))


if __name__ == "__main__":
    main()
