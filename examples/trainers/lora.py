"""PEFT: the adapters of LoRA train, the model stays; merged and saved in between.

    python examples/trainers/lora.py
"""

from __future__ import annotations

import copy
import warnings

import torch
from peft import LoraConfig, get_peft_model
from text import Text, model, side_by_side

import trainc

warnings.filterwarnings("ignore", module="peft")


def train(compiled: bool) -> list[float]:
    torch.manual_seed(1)
    net = get_peft_model(model(), LoraConfig(r=4, lora_dropout=0.1, target_modules=["c_attn"], task_type="CAUSAL_LM"))
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=1e-2)
    if compiled:
        net, optimizer = trainc.compile(net, optimizer)
    losses = []
    for batch in torch.utils.data.DataLoader(Text(40), 4):
        loss = net(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    net.eval()
    whole = copy.deepcopy(net).merge_and_unload()  # one model without adapters
    batch = next(iter(torch.utils.data.DataLoader(Text(4), 4)))
    with torch.no_grad():
        return [*losses, net(**batch).loss.item(), whole(**batch).loss.item()]


if __name__ == "__main__":
    side_by_side(train)
