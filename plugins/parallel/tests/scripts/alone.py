"""A collective in a training step, of which only the process with the last stage runs all. The argument: which."""

from __future__ import annotations

import sys
from typing import Any

import torch
from problem import LENGTH, VOCABULARY, Transformer
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset
from torch_hal_parallel import ModelParallelStrategy

import torch_hal


class Reduces(torch_hal.Module):
    """Calls the collective after the model, or before it."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Transformer()

    def training_step(self, batch: tuple[Tensor], batch_idx: int) -> Tensor:
        (text,) = batch
        if "before" in sys.argv:
            self.call(torch.ones(1))
        loss = cross_entropy(self.model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        self.call(loss)
        return loss

    def call(self, value: Tensor) -> Any:
        strategy = self.trainer.strategy
        return strategy.barrier() if sys.argv[1] == "barrier" else getattr(strategy, sys.argv[1])(value)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1e-2)


strategy = ModelParallelStrategy(pipeline=2, microbatches=4)
quiet: dict[str, Any] = dict.fromkeys(("logger", "enable_progress_bar", "enable_checkpointing"), False)
trainer = torch_hal.Trainer(accelerator="cpu", devices=2, strategy=strategy, max_epochs=1, **quiet)
text = torch.zeros(16, LENGTH + 1, dtype=torch.long) % VOCABULARY
trainer.fit(Reduces(), DataLoader(TensorDataset(text), batch_size=8))
