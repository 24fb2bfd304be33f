"""Lightning with trainc's callback: accumulation, clipping, a schedule, validation; then training goes on from a checkpoint.

    python examples/trainers/lightning_module.py
"""

from __future__ import annotations

import tempfile

import lightning
import torch
from text import Text, model, side_by_side

from trainc.trainers.lightning import Callback


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model, self.losses = model(), []

    def training_step(self, batch, _):
        loss = self.model(**batch).loss
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch, _):
        self.losses.append(self.model(**batch).loss.item())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


def train(compiled: bool) -> list[float]:
    loader = torch.utils.data.DataLoader(Text(16), 4)

    def fit(epochs: int, folder: str, path: str | None = None) -> Module:
        lightning.seed_everything(0, verbose=False)
        module = Module()
        trainer = lightning.Trainer(
            max_epochs=epochs, accelerator="cpu", accumulate_grad_batches=2, gradient_clip_val=0.5, logger=False,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
            callbacks=[Callback()] if compiled else [], default_root_dir=folder,
        )  # fmt: skip
        trainer.fit(module, loader, torch.utils.data.DataLoader(Text(8), 4), ckpt_path=path)
        trainer.save_checkpoint(f"{folder}/last.ckpt")
        return module

    with tempfile.TemporaryDirectory() as folder:
        return fit(2, folder).losses + fit(3, folder, f"{folder}/last.ckpt").losses


if __name__ == "__main__":
    side_by_side(train)
