"""Hugging Face's Trainer:

    trainer = Trainer(model, args, train_dataset=data, callbacks=[trainc.trainers.huggingface.Callback()])
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from trainc.torch.doors.door import compile_objects


class Callback(TrainerCallback):
    """Compiles the model and the optimizer when training begins, also when it is resumed. `tune`, `memory` and `verify` are
    trainc.compile's."""

    def __init__(self, *, tune: str = "fast", memory: Any = None, verify: bool | int = False):
        self._settings = {"tune": tune, "memory": memory, "verify": verify}

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, optimizer: Any = None, **_: Any) -> None:
        compile_objects(model, optimizer, fuse_step=False, **self._settings)


__all__ = ["Callback"]
