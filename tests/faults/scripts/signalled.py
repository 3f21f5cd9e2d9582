"""Trains on two processes and stays for a while at a moment, so that a signal can be sent: ``signalled.py MOMENT``."""

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from core import Callback, Module, Trainer
from core.callbacks import ModelCheckpoint

OUT = Path(os.environ["OUT"])
STAY_SECONDS = 2.0
WORKERS = 0 if sys.argv[1] == "save" else 2
"""A signal is harder with workers of the loaders, which must end too."""


class Net(Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss: torch.Tensor = self.layer(batch[0]).square().mean()
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("loss", self.layer(batch[0]).square().mean())

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Stay(Callback):
    """Every process stays at the moment, once."""

    def __init__(self, moment: str) -> None:
        self.moment = moment

    def reach(self, moment: str, trainer: Any) -> None:
        if moment == self.moment:
            self.moment = ""
            (OUT / f"pid.{trainer.global_rank}").write_text(str(os.getpid()))
            end = time.monotonic() + STAY_SECONDS
            while time.monotonic() < end:
                time.sleep(0.05)

    def on_train_start(self, trainer: Any, module: Any) -> None:
        self.reach("start", trainer)

    def on_before_backward(self, trainer: Any, module: Any, loss: Any) -> None:
        if trainer.progress.step == 5:
            self.reach("step", trainer)

    def on_validation_batch_start(self, trainer: Any, module: Any, *_: Any) -> None:
        self.reach("validation", trainer)

    def on_save_checkpoint(self, trainer: Any, module: Any, checkpoint: Any) -> None:
        self.reach("save", trainer)

    def on_train_batch_end(self, *_: Any) -> None:
        time.sleep(0.02)


def main() -> None:
    Trainer(
        accelerator="cpu",
        strategy="ddp_fork",
        devices=2,
        max_epochs=2,
        val_check_interval=10,
        num_sanity_val_steps=0,
        callbacks=[ModelCheckpoint(OUT / "saved", every_n_train_steps=8), Stay(sys.argv[1])],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(
        Net(),
        DataLoader(TensorDataset(torch.randn(160, 4)), batch_size=2, num_workers=WORKERS),
        DataLoader(TensorDataset(torch.randn(8, 4)), batch_size=2, num_workers=WORKERS),
    )


if __name__ == "__main__":
    main()
