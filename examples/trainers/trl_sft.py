"""TRL's SFTTrainer with trainc's callback: adapters of LoRA, gradient checkpointing (TRL's default), batches padded to their
longest row.

    pip install trl peft
    python examples/trainers/trl_sft.py
"""

from __future__ import annotations

import tempfile
import warnings

from datasets import Dataset
from peft import LoraConfig
from text import Text, model, side_by_side
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

from trainc.trainers.huggingface import Callback

warnings.filterwarnings("ignore", module="peft")


def train(compiled: bool) -> list[float]:
    rows = [row["input_ids"].tolist() for row in Text(48)]
    data = Dataset.from_dict({"input_ids": [row[: 20 + 4 * (i // 8 % 4)] for i, row in enumerate(rows)]})
    letters = Tokenizer(models.WordLevel({chr(i): i for i in range(256)}, unk_token="\0"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=letters, pad_token="\0", eos_token="\n")
    with tempfile.TemporaryDirectory() as folder:
        arguments = SFTConfig(
            folder, per_device_train_batch_size=4, max_steps=6, learning_rate=1e-2, logging_steps=1, save_strategy="no", seed=0,
            max_length=32, report_to="none", disable_tqdm=True, use_cpu=True, bf16=False,
        )  # fmt: skip
        trainer = SFTTrainer(
            model(), arguments, train_dataset=data, processing_class=tokenizer, callbacks=[Callback()] if compiled else [],
            peft_config=LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM"),
        )  # fmt: skip
        trainer.train()
        return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


if __name__ == "__main__":
    side_by_side(train)
