"""What the examples of trainers share: real text (Python's own source, as bytes), a small GPT-2, losses side by side."""

from __future__ import annotations

import argparse
import inspect

import torch
from transformers import GPT2Config, GPT2LMHeadModel

ROW = 32  # bytes


class Text(torch.utils.data.Dataset):
    """Rows of a module's source, as a language model's batch has them."""

    def __init__(self, rows: int = 64, module=inspect):
        data = torch.frombuffer(bytearray(inspect.getsource(module).encode()), dtype=torch.uint8).long()
        self._rows = data[: rows * ROW].view(rows, ROW)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self._rows[i], "labels": self._rows[i]}


def model() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    sizes = {"n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 256, "n_positions": ROW}
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))


def side_by_side(train) -> None:
    """Prints the losses of `train(False)`, eager, and of `train(True)`; with --eager or --compiled of one of them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=("eager", "compiled"))
    only = parser.parse_args().only
    for name, compiled in (("eager", False), ("compiled", True)):
        if only in (None, name):
            print(name, *(f"{loss:.7f}" for loss in train(compiled)))
