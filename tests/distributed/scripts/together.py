"""Evaluation where each forward pass needs all processes, or where processes share the data."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from core import Module, Trainer
from core.strategies import DDPStrategy

OUT = Path(os.environ["OUT"])


class Meeting(nn.Module):
    """Waits for the other process in each forward pass."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any) -> Any:
        dist.barrier()
        return self.module(*args)


class Together(DDPStrategy):
    """Each forward pass needs both processes."""

    inference_is_collective = True

    def inference_module(self, module: nn.Module) -> nn.Module:
        return Meeting(super().inference_module(module))


class Shared(Together):
    """And both take the same data."""

    @property
    def data_shards(self) -> int:
        return 1

    @property
    def data_shard(self) -> int:
        return 0


class Sums(Module):
    """Logs and predicts sums."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("mean", batch[0].mean())
        self.log("sum", batch[0].sum(), reduce_fx="sum")

    def predict_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return batch[0].flatten()


def loader(items: int) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.arange(1.0, items + 1).unsqueeze(1)), batch_size=2)


said: dict[str, Any] = {}
for strategy in (DDPStrategy(), Together(), Shared()):
    for items in (10, 9, 2):
        trainer = Trainer(accelerator="cpu", strategy=strategy, devices=2, enable_progress_bar=False)
        (metrics,) = trainer.validate(Sums(), loader(items))
        strategy = type(strategy)()
        trainer = Trainer(accelerator="cpu", strategy=strategy, devices=2, enable_progress_bar=False)
        predicted = [number for batch in trainer.predict(Sums(), loader(items)) for number in batch.tolist()]
        strategy = type(strategy)()
        said[f"{type(strategy).__name__} {items}"] = [metrics, predicted]
if trainer.is_global_zero:
    (OUT / "said.json").write_text(json.dumps(said))
