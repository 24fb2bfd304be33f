"""Trains a small GPT-2 on several processes with DistributedDataParallel, compiled.

    torchrun --nproc-per-node=2 examples/distributed/train_ddp.py
    torchrun --nproc-per-node=2 examples/distributed/train_ddp.py --eager    # the same loop in PyTorch, to compare
    torchrun --nproc-per-node=2 examples/distributed/train_ddp.py --fsdp     # sharded by fully_shard

Each rank reads its own rows; gradients are averaged by DDP as ever. At the end the ranks compare their weights.
"""

from __future__ import annotations

import argparse
import os

import torch
from torch import nn
from torch.nn import functional as F

import trainc


class Block(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Model(nn.Module):
    def __init__(self, words: int = 256, width: int = 64, layers: int = 2, heads: int = 4, length: int = 64):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x))[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def batch_of(rank: int, step: int, rows: int, length: int = 64) -> torch.Tensor:
    """Bytes of this file: other ones for each rank and step."""
    with open(__file__, "rb") as file:
        text = torch.tensor(list(file.read()))
    starts = torch.randint(len(text) - length, (rows,), generator=torch.Generator().manual_seed(1000 * rank + step))
    return torch.stack([text[i : i + length] for i in starts])


def same_on_all_ranks(model: nn.Module) -> bool:
    for p in model.parameters():
        mine = p.full_tensor() if hasattr(p, "full_tensor") else p.detach()
        first = mine.clone()
        torch.distributed.broadcast(first, 0)
        if not torch.equal(mine, first):
            return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--fsdp", action="store_true")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--batch", type=int, default=4, help="rows of each rank")
    args = parser.parse_args()

    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))
    torch.manual_seed(0)
    model = Model()
    if args.fsdp:
        from torch.distributed.fsdp import fully_shard

        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    else:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    if not args.eager:
        model, optimizer = trainc.compile(model, optimizer)

    for step in range(args.steps):
        optimizer.zero_grad()
        loss = model(batch_of(rank, step, args.batch))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        mean = loss.detach().clone()
        torch.distributed.all_reduce(mean)
        if rank == 0:
            print(f"step {step}  loss {mean.item() / torch.distributed.get_world_size():.5f}", flush=True)
    same = same_on_all_ranks(model)
    if rank == 0:
        print("weights are the same on all ranks" if same else "the ranks' weights differ", flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
