"""A Trainer's fit of a module with batch norm: under DDP, under FSDP, and resumed under FSDP."""

from __future__ import annotations

from typing import Any

import torch
from problem import OUT, say
from torch import Tensor, nn
from torch.utils.data import DataLoader

import torch_hal
from torch_hal.callbacks import ModelCheckpoint

ITEMS = torch.randn(30, 4, generator=torch.Generator().manual_seed(1)) + torch.arange(30)[:, None] / 10


class Normed(torch_hal.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        self.means: list[float] = []

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        loss: Tensor = self.layers(batch).square().mean()
        return loss

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.log("val", self.layers(batch).square().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05)

    def on_fit_end(self) -> None:
        mean = self.get_buffer("layers.1.running_mean")
        self.means = self.all_gather(mean).flatten().tolist()


def fit(strategy: str, name: str, ckpt_path: Any = None) -> dict[str, Any]:
    torch_hal.seed_everything(0)
    items: Any = ITEMS  # which torch takes for a data set
    module, loader = Normed(), DataLoader(items, batch_size=3, shuffle=True)
    trainer = torch_hal.Trainer(
        accelerator="cpu",
        strategy=strategy,
        devices=2,
        max_epochs=2,
        limit_train_batches=4,
        val_check_interval=2,
        callbacks=ModelCheckpoint(OUT / name, filename="{step}", every_n_train_steps=3, save_top_k=-1),
        logger=False,
        enable_progress_bar=False,
    )
    trainer.fit(module, loader, loader, ckpt_path=ckpt_path)
    return {"val": float(trainer.callback_metrics["val"]), "means": module.means}


found = {
    "ddp": fit("ddp", "ddp"),
    "fsdp": fit("fsdp", "fsdp"),
    "resumed": fit("fsdp", "resumed", OUT / "fsdp/step=3.ckpt"),
}
with torch_hal.Runtime(accelerator="cpu", strategy="ddp", devices=2) as last:
    last.launch()
    say(last, found)
