"""Prints the metrics of a fit with two validation loaders; with the argument ``core`` or ``lightning``."""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

names = ("core", "Module") if sys.argv[1] == "core" else ("lightning.pytorch", "LightningModule")
front: Any = importlib.import_module(names[0])
base: Any = getattr(front, names[1])


def loader(items: int) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.arange(items * 2.0).view(items, 2) / items), batch_size=3)


class Net(base):  # type: ignore[misc]
    """Logs in each way that its hooks allow."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(2, 1)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.layer(batch[0]).square().mean()
        self.log("train", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        value = self.layer(batch[0]).mean()
        self.log("plain", value)
        self.log("both", value, on_step=True, on_epoch=True)
        self.log("step", value, on_step=True, on_epoch=False)
        self.log(f"own{dataloader_idx}", value, add_dataloader_idx=False)

    def on_validation_epoch_end(self) -> None:
        self.log("end", 1.0)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


if __name__ == "__main__":
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)
    trainer = front.Trainer(accelerator="cpu", devices=1, max_epochs=2, **quiet)
    trainer.fit(Net(), loader(9), [loader(7), loader(4)])
    for metrics in (trainer.callback_metrics, trainer.logged_metrics):
        print("metrics", json.dumps({name: float(value) for name, value in metrics.items()}))
