"""Trains a Hugging Face GPT-2 with `trainc.train_step`: the body of the loop as one plan, in less memory than `trainc.compile`
needs.

    python examples/train_step.py                  # GPT-2 124M, random weights, Python's own source
    python examples/train_step.py --eager          # the same loop in PyTorch, to compare
"""

from __future__ import annotations

import argparse
import time

import torch
from finetune_gpt2 import batch_of, build_model, peak_resident_bytes, token_stream

import trainc


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seq", type=int, default=256, help="tokens in a row")
    args = parser.parse_args()

    model = build_model(None, seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=5)

    def step(ids):
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        return loss, norm

    if not args.eager:
        step = trainc.train_step(step)

    tokens = token_stream(None, None)
    torch.manual_seed(0)
    for i in range(args.steps):
        start = time.perf_counter()
        loss, norm = step(batch_of(tokens, i, args.batch, args.seq, seed=0))
        seconds = time.perf_counter() - start
        print(f"step {i}  loss {loss.item():.5f}  gradient norm {norm.item():.4f}  {seconds:.2f} s", flush=True)
    print(f"peak memory {peak_resident_bytes() / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
