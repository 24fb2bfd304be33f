"""GPT-2 124M on real text: the loss of every step, through trainc's doors, against eager's own spread.

The rule is tests/python/losses.py's. Each run is a process of its own; finished runs are kept in build/losses and not made again
unless --fresh is given (trainc's are always made again). Ends with code 1 where a step breaks the rule.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "tests" / "python"), str(ROOT / "bench")]
import finetune_gpt2 as gpt2  # noqa: E402
import losses as rule  # noqa: E402
from contestant import DOORS, stepping  # noqa: E402

MEMORY = 0.85  # of what it would need
WAYS = [*(door for door in DOORS if door.startswith("trainc")), "trainc-memory"]


def train(door: str, disturbance: int, args: argparse.Namespace, path: Path) -> None:
    import torch
    from tqdm import tqdm

    model = gpt2.build_model(args.model, args.seed)
    if disturbance:
        rule.disturb(model, disturbance)
    memory = MEMORY if door == "trainc-memory" else None
    door = door.removesuffix("-memory")
    step = stepping(door, model, torch.optim.AdamW(model.parameters(), lr=1e-4), memory=memory)
    tokens = gpt2.token_stream(args.model, None)
    torch.manual_seed(args.seed)
    losses = []
    for i in tqdm(range(args.steps), desc=path.stem, mininterval=10):
        ids = gpt2.batch_of(tokens, i, args.batch, args.seq, args.seed)
        losses.append(step({"input_ids": ids, "labels": ids}).item())
    path.write_text(json.dumps(losses))


def losses_of(door: str, disturbance: int, args: argparse.Namespace) -> list[float]:
    model = Path(args.model).name if args.model else "124M"
    name = f"{door}-{disturbance}-{args.batch}x{args.seq}-{args.steps}-seed{args.seed}-{model}"
    path = ROOT / "build" / "losses" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    if args.fresh or door != "eager" or not path.exists():
        process = multiprocessing.get_context("spawn").Process(target=train, args=(door, disturbance, args, path))
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
    parser.add_argument("--fresh", action="store_true", help="train eager again as well")
    args = parser.parse_args()

    compiled = {door: losses_of(door, 0, args) for door in args.doors}
    eager = losses_of("eager", 0, args)
    disturbed = [losses_of("eager", seed, args) for seed in rule.SEEDS]
    bounds = rule.bounds(eager, disturbed)

    print(f"\n{'step':>4} {'eager':>12} {'allowed':>9}" + "".join(f" {door:>16} {'differs':>9}" for door in args.doors))
    differences = {door: rule.relative(compiled[door], eager) for door in args.doors}
    for i, loss in enumerate(eager):
        columns = [f" {compiled[door][i]:>16.7f} {differences[door][i]:>9.1e}" for door in args.doors]
        print(f"{i + 1:>4} {loss:>12.7f} {bounds[i]:>9.1e}" + "".join(columns))
    broken = {door: rule.violations(compiled[door], eager, disturbed) for door in args.doors}
    for door, lines in broken.items():
        print(f"{door}: {len(eager) - len(lines)} of {len(eager)} steps within the rule")
    raise SystemExit(1 if any(broken.values()) else 0)


if __name__ == "__main__":
    main()
