"""Trains the model of train_ddp.py with Ray Train: the same loop, whose processes Ray starts and whose metrics it collects.

    pip install "ray[train]"
    python examples/distributed/train_ray.py --workers 2
    python examples/distributed/train_ray.py --workers 2 --eager    # the same loop in PyTorch, to compare

`prepare_model` wraps the model in DistributedDataParallel; trainc.compile comes after it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

HERE = str(Path(__file__).resolve().parent)


def train(settings: dict) -> None:
    """What each process runs."""
    import ray.train
    import ray.train.torch

    sys.path.insert(0, HERE)
    from train_ddp import Model, batch_of, same_on_all_ranks

    import trainc

    rank = ray.train.get_context().get_world_rank()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = ray.train.torch.prepare_model(Model(), move_to_device=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    if not settings["eager"]:
        model, optimizer = trainc.compile(model, optimizer)
    for step in range(settings["steps"]):
        optimizer.zero_grad()
        loss = model(batch_of(rank, step, settings["batch"]))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        mean = loss.detach().clone()
        torch.distributed.all_reduce(mean)
        if rank == 0:
            print(f"step {step}  loss {mean.item() / torch.distributed.get_world_size():.5f}", flush=True)
        ray.train.report({"loss": mean.item() / torch.distributed.get_world_size()})
    same = same_on_all_ranks(model)
    if rank == 0:
        print("weights are the same on all ranks" if same else "the ranks' weights differ", flush=True)


def main() -> None:
    from ray.train import ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--workers", type=int, default=2, help="processes, a CPU each")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--batch", type=int, default=4, help="rows of each process")
    args = parser.parse_args()
    trainer = TorchTrainer(
        train, train_loop_config=vars(args), torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=args.workers, resources_per_worker={"CPU": 1}),
    )  # fmt: skip
    trainer.fit()


if __name__ == "__main__":
    main()
