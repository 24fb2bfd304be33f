"""Hugging Face's Trainer with trainc's callback: gradient accumulation, clipping, a schedule, evaluation; then training is
resumed from a checkpoint. The losses of an eager run beside it.

    pip install accelerate transformers
    python examples/trainers/huggingface.py
"""

from __future__ import annotations

import dis
import tempfile

from text import Text, model, side_by_side
from transformers import Trainer, TrainingArguments

from trainc.trainers.huggingface import Callback


def train(compiled: bool) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, per_device_train_batch_size=4, gradient_accumulation_steps=2, max_steps=6, learning_rate=1e-3,
            lr_scheduler_type="cosine", warmup_steps=2, max_grad_norm=0.5, logging_steps=1, save_steps=3, eval_strategy="steps",
            eval_steps=3, seed=0, report_to="none", disable_tqdm=True, use_cpu=True,
        )  # fmt: skip

        def trainer() -> Trainer:
            callbacks = [Callback()] if compiled else []
            return Trainer(model(), arguments, train_dataset=Text(), eval_dataset=Text(8, dis), callbacks=callbacks)

        whole, resumed = trainer(), trainer()
        whole.train()
        resumed.train(resume_from_checkpoint=f"{folder}/checkpoint-3")
        return losses(whole) + losses(resumed)[-4:]


def losses(trainer: Trainer) -> list[float]:
    return [entry[name] for entry in trainer.state.log_history for name in ("loss", "eval_loss") if name in entry]


if __name__ == "__main__":
    side_by_side(train)
