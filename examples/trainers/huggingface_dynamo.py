"""Hugging Face's Trainer without a callback: torch_compile=True with trainc as torch.compile's backend. (The optimizer stays
PyTorch's; the callback compiles it, too.)

    python examples/trainers/huggingface_dynamo.py
"""

from __future__ import annotations

import tempfile

from text import Text, model, side_by_side
from transformers import Trainer, TrainingArguments

import trainc  # noqa: F401 (adds "trainc" to accelerate's list of backends)


def train(compiled: bool) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, per_device_train_batch_size=4, max_steps=5, learning_rate=1e-3, logging_steps=1, save_strategy="no", seed=0,
            report_to="none", disable_tqdm=True, use_cpu=True, torch_compile_backend="trainc" if compiled else None,
        )  # fmt: skip
        trainer = Trainer(model(), arguments, train_dataset=Text())
        trainer.train()
        return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


if __name__ == "__main__":
    side_by_side(train)
