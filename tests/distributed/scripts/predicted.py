"""Writes what predict computes, with the indices of each batch; each item of the data is its own index."""

import os
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from core import Module, Trainer, seed_everything
from core.callbacks import BasePredictionWriter

OUT = Path(os.environ["OUT"])
RANK = int(os.environ["RANK"])


class Same(Module):
    """Its prediction is the batch."""

    def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
        return batch


class Notes(BasePredictionWriter):
    def __init__(self) -> None:
        super().__init__("batch_and_epoch")
        self.batches, self.epoch = list[Any](), list[Any]()

    def write_on_batch_end(
        self, trainer: Any, module: Any, prediction: Any, batch_indices: Any, *of_batch: Any
    ) -> None:
        batch, batch_idx, dataloader_idx = of_batch
        self.batches.append((dataloader_idx, batch_idx, batch.tolist(), batch_indices))

    def write_on_epoch_end(self, trainer: Any, module: Any, predictions: Any, batch_indices: Any) -> None:
        self.epoch = [predictions, batch_indices]


def items(count: int) -> Any:
    return range(count)


seed_everything(3)
own = BatchSampler(SequentialSampler(range(11)), 4, drop_last=False)
loaders: list[Any] = [
    DataLoader(items(23), batch_size=3, shuffle=True),
    DataLoader(items(11), batch_sampler=own, num_workers=1),
    DataLoader(items(2), batch_size=1),
]
found = {}
for name, given in {"several": loaders, "one": loaders[0]}.items():
    notes = Notes()
    settings: Any = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
    trainer = Trainer(accelerator="cpu", strategy="auto", callbacks=notes, **settings)
    returned = trainer.predict(Same(), given, return_predictions=name == "several")
    found[name] = (notes.batches, notes.epoch, returned)
torch.save(found, OUT / str(RANK))
