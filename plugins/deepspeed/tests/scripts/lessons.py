"""A Module for the Trainer, its data, and the Trainer for it."""

from __future__ import annotations

from typing import Any

import torch
from problem import MLP, OUT, batch_of
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import torch_hal
from torch_hal.callbacks import ModelCheckpoint


class Lesson(torch_hal.Module):
    """The MLP with dropout, its own parameter, and a learning rate schedule."""

    def __init__(self) -> None:
        super().__init__()
        self.model = MLP()
        self.dropout = torch.nn.Dropout(0.1)
        self.scale = torch.nn.Parameter(torch.ones(1))
        self.seen: list[float] = []

    def forward(self, batch: Tensor) -> Tensor:
        scores: Tensor = self.dropout(self.model(batch)) * self.scale
        return scores

    def training_step(self, batch: tuple[Tensor, ...], batch_idx: int) -> Tensor:
        loss = cross_entropy(self(batch[0]), batch[1])
        self.seen.append(float(loss.detach()))
        return loss

    def validation_step(self, batch: tuple[Tensor, ...], batch_idx: int) -> None:
        self.log("loss", cross_entropy(self(batch[0]), batch[1]))
        self.log("items", len(batch[0]), reduce_fx="sum")

    def predict_step(self, batch: tuple[Tensor, ...], batch_idx: int) -> Tensor:
        scores: Tensor = self(batch[0]).float()
        return scores

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=2e-3, eps=1e-4)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


def data(items: int, number: int, shuffle: bool = False) -> DataLoader[Any]:
    """Batches of four items."""
    return DataLoader(TensorDataset(*batch_of(number, items)), batch_size=4, shuffle=shuffle)


def trainer(strategy: Any, devices: int, name: str, epochs: int = 2, **options: Any) -> torch_hal.Trainer:
    """Keeps its checkpoints under ``name``."""
    torch_hal.seed_everything(3)
    options = {"accelerator": "cpu", "enable_progress_bar": False, "logger": False, "gradient_clip_val": 0.5, **options}
    saving = ModelCheckpoint(OUT / name / "checkpoints", save_top_k=-1)
    options["callbacks"] = [*options.get("callbacks", ()), saving]
    return torch_hal.Trainer(strategy=strategy, devices=devices, max_epochs=epochs, **options)
