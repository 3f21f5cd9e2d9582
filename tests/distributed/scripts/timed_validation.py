"""Validates after times, in processes whose batches take different times; notes where, and how often they talk.

Each process has its own clock, which only training steps advance. So the result does not depend on the machine's speed.
"""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from core import Callback, Module, Trainer
from core.callbacks import agreement

OUT = Path(os.environ["OUT"])
RANK = int(os.environ["RANK"])
clock = SimpleNamespace(now=0.0)
agreement.time = SimpleNamespace(monotonic=lambda: clock.now)  # type: ignore[assignment, attr-defined]


class Linear(Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        clock.now += 2**-9 * (3 - RANK)
        loss: Tensor = self.layer(batch[0]).square().mean()
        return loss

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("val", self.layer(batch[0]).mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-2)


class Notes(Callback):
    def __init__(self) -> None:
        self.at, self.talks = list[int](), 0

    def on_train_start(self, trainer: Trainer, module: Any) -> None:
        broadcast = trainer.strategy.broadcast

        def counted(*args: Any) -> Any:
            self.talks += 1
            return broadcast(*args)

        trainer.strategy.broadcast = counted  # type: ignore[assignment, method-assign]

    def on_validation_end(self, trainer: Trainer, module: Any) -> None:
        self.at.append(trainer.global_step)


notes = Notes()
quiet: Any = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False, "num_sanity_val_steps": 0}
data = DataLoader(TensorDataset(torch.randn(302, 2)), batch_size=1)
trainer = Trainer(accelerator="cpu", max_epochs=2, val_check_interval={"milliseconds": 200}, callbacks=notes, **quiet)
trainer.fit(Linear(), data, data)
torch.save((notes.at, notes.talks), OUT / str(RANK))
