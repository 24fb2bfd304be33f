"""accelerate: `trainc.compile` after `accelerator.prepare`, whose wrapped optimizer it looks into. Gradient accumulation,
clipping, a schedule, and a checkpoint that is loaded again.

    python examples/trainers/accelerated.py
"""

from __future__ import annotations

import tempfile

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from text import Text, model, side_by_side

import trainc


def train(compiled: bool) -> list[float]:
    set_seed(0)
    accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=4)
    loader = torch.utils.data.DataLoader(Text(), 4)
    net, optimizer, loader, schedule = accelerator.prepare(net, optimizer, loader, schedule)
    if compiled:
        net, optimizer = trainc.compile(net, optimizer)

    def epoch() -> list[float]:
        losses = []
        for batch, _ in zip(loader, range(6), strict=False):
            with accelerator.accumulate(net):
                loss = net(**batch).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(net.parameters(), 0.5)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    with tempfile.TemporaryDirectory() as folder:
        first = epoch()
        accelerator.save_state(folder)
        second = epoch()
        accelerator.load_state(folder)
        again = epoch()
    assert all(abs(a - b) < 1e-6 for a, b in zip(second, again, strict=True)), (second, again)
    return first + second


if __name__ == "__main__":
    side_by_side(train)
