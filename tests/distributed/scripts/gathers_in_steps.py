"""Steps of an evaluation gather, where processes have different numbers of batches; with data that divides they may."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from core import Module, Trainer
from core.errors import ConfigurationError

GATHERS: dict[str, Callable[[Any, Tensor], object]] = {
    "module": lambda module, loss: module.all_gather(loss),
    "strategy": lambda module, loss: module.trainer.strategy.reduce(loss),
    "runtime": lambda module, loss: module.trainer.runtime.gather({"loss": loss}),
}


class Gathers(Module):
    """Gathers the loss of each step."""

    def __init__(self, gather: Callable[[Any, Tensor], object]) -> None:
        super().__init__()
        self.layer, self.gather = nn.Linear(1, 1), gather

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.gather(self, self.layer(batch).mean())

    def test_step(self, batch: Tensor, batch_idx: int) -> None:
        self.gather(self, self.layer(batch).mean())


said = {}
for name, gather in GATHERS.items():
    for stage, rows in (("validate", 14), ("test", 2), ("test", 12)):
        trainer = Trainer(accelerator="cpu", devices=3, logger=False, enable_progress_bar=False)
        data: Any = torch.ones(rows, 1)
        try:
            getattr(trainer, stage)(Gathers(gather), DataLoader(data, batch_size=2, num_workers=2), verbose=False)
        except ConfigurationError as error:
            said[f"{name} {stage} {rows}"] = str(error)
Path(os.environ["OUT"], f"{os.environ['RANK']}.json").write_text(json.dumps(said))
