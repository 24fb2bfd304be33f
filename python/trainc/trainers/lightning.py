"""Lightning's Trainer:

    trainer = lightning.Trainer(callbacks=[trainc.trainers.lightning.Callback()])
"""

from __future__ import annotations

from typing import Any

try:
    from lightning.pytorch.callbacks import Callback as _Callback
except ImportError:  # the package under its older name
    from pytorch_lightning.callbacks import Callback as _Callback

from trainc.torch.doors.trained import Compiling


class Callback(_Callback):
    """Compiles the modules that `training_step` calls, and the optimizers. `tune` and `memory` are trainc.compile's."""

    def __init__(self, *, tune: str = "fast", memory: Any = None):
        self._settings = {"tune": tune, "memory": memory}
        self._compiling: Compiling | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._compiling = Compiling(**self._settings)
        self._compiling.__enter__()
        for optimizer in trainer.optimizers:
            self._compiling.add(optimizer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._stop()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._stop()

    def _stop(self) -> None:
        compiling, self._compiling = self._compiling, None
        if compiling is not None:
            compiling.__exit__(None, None, None)


__all__ = ["Callback"]
