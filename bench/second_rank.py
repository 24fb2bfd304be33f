"""How long a rank waits for plans that another rank compiles: the first step of GPT-2 124M under DistributedDataParallel, on
processes of a thread each that start at the same moment.

    python bench/second_rank.py              # two processes
    python bench/second_rank.py --ranks 4

Three starts: of ranks that have a cache directory in common; of ranks that have one each, so that plans go through the group's
store; and again, with the plans in the directory. `tracing` is what every rank does for itself; `beyond` is what it then takes
until it has its plans: compiling, or waiting and reading. A rank's last columns are how many plans it compiled, of how many.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile

import torch
from slow_network import join, start

STARTS = ("one directory", "a directory each", "plans are there")


def first_step(args: argparse.Namespace) -> dict[str, float]:
    from transformers import GPT2Config, GPT2LMHeadModel

    import trainc
    from trainc.base import records

    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(GPT2LMHeadModel(GPT2Config(n_layer=args.layers)))
    optimizer = torch.optim.AdamW(model.parameters())
    trainc.compile(model, optimizer)
    ids = torch.randint(50257, (args.rows, args.length))
    torch.distributed.barrier()
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    compilations = [*trainc.explain(model).compilations, *records.of(optimizer)]
    plans = [executable.report()["from_cache"] for each in compilations for executable in each.executables()]
    tracing, beyond = (sum(getattr(each, f"{what}_seconds") for each in compilations) for what in ("capture", "compile"))
    return {"tracing": tracing, "beyond": beyond, "compiled": plans.count(False), "plans": len(plans)}


def rank_main(args: argparse.Namespace) -> None:
    rank, folder = int(args.rank[0]), args.rank[1]
    if args.start == STARTS[1]:
        os.environ["TRAINC_CACHE_DIR"] = os.path.join(folder, f"cache.{rank}")
    join(rank, args.ranks, folder)
    found: list[dict] = [{}] * args.ranks
    torch.distributed.all_gather_object(found, first_step(args))
    print(json.dumps(found), flush=True)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--rows", type=int, default=2)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--rank", nargs=2, metavar=("RANK", "FOLDER"), help=argparse.SUPPRESS)
    parser.add_argument("--start", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank is not None:
        return rank_main(args)
    words = [f"--{name}={getattr(args, name)}" for name in ("ranks", "layers", "rows", "length")]
    print(f"{'start':<18}{'rank':>6}{'tracing':>10}{'beyond':>10}{'compiled':>10}")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRAINC_CACHE_DIR"] = folder
        for name in STARTS:
            for rank, each in enumerate(json.loads(start(__file__, args.ranks, *words, f"--start={name}").splitlines()[-1])):
                counts = f"{each['compiled']} of {each['plans']}"
                print(f"{name:<18}{rank:>6}{each['tracing']:>8.2f} s{each['beyond']:>8.2f} s{counts:>10}", flush=True)


if __name__ == "__main__":
    main()
