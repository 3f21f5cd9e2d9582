"""Two processes validate one batch, and the hook of the epoch's end reads what its process has collected."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from core import Module, Trainer


class Net(Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.collected: list[Tensor] = []

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.collected.append(self.layer(batch[0]).mean())

    def on_validation_epoch_end(self) -> None:
        self.log("first", self.collected[0])


if __name__ == "__main__":
    trainer = Trainer(accelerator="cpu", devices=2, strategy="ddp", logger=False, enable_progress_bar=False)
    trainer.validate(Net(), DataLoader(TensorDataset(torch.ones(2, 2)), batch_size=2))
