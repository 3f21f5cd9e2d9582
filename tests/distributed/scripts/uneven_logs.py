"""The commonest line of all, with processes that have different numbers of batches."""

import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from core import DataModule, Module, Trainer

ITEMS = torch.arange(14.0)[:, None]  # four batches of four, the last of two: one or two for each of three processes


class Logs(Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        self.log("train", batch[0].mean(), on_step=True, on_epoch=True, sync_dist=True)
        self.log("items", len(batch[0]), on_step=True, on_epoch=True, sync_dist=True, reduce_fx="sum")
        loss: Tensor = self.layer(batch[0]).square().mean()
        return loss

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("val", batch[0].mean(), on_step=True, on_epoch=True, sync_dist=True)
        self.log("sum", batch[0].sum(), on_step=True, on_epoch=True, sync_dist=True, reduce_fx="sum")

    test_step = validation_step

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-4)


class Items(DataModule):
    kept: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.changed = 0

    def prepare_data(self) -> None:
        self.kept = self.changed = 1
        with Path(os.environ["OUT"], "prepared").open("a") as file:
            file.write("once\n")
            time.sleep(0.5)
            file.write("done\n")

    def setup(self, stage: str) -> None:
        assert Path(os.environ["OUT"], "prepared").read_text().endswith("done\n")

    def train_dataloader(self) -> Any:
        return DataLoader(TensorDataset(ITEMS[:12]), batch_size=2)

    def val_dataloader(self) -> Any:
        return DataLoader(TensorDataset(ITEMS), batch_size=4)

    test_dataloader = val_dataloader


class Sent:
    """A logger that keeps what it gets."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self.calls.append([step, metrics])


if __name__ == "__main__":
    sent = Sent()
    trainer = Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=3,
        max_epochs=1,
        logger=sent,
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_checkpointing=False,
    )
    module = Logs()
    trainer.fit(module, datamodule=Items())
    found = {name: float(value) for name, value in trainer.callback_metrics.items()}
    (tested,) = trainer.test(module, Items())
    trainer.validate(module, DataLoader(TensorDataset(ITEMS[:4]), batch_size=4))  # a batch for process 0 alone
    means = [float(trainer.callback_metrics[name]) for name in ("val", "val_epoch")]
    Path(os.environ["OUT"], f"alone{trainer.global_rank}.json").write_text(json.dumps(means))
    if trainer.is_global_zero:
        said = {"fit": found, "test": tested, "sent": sent.calls}
        Path(os.environ["OUT"], "logs.json").write_text(json.dumps(said))
