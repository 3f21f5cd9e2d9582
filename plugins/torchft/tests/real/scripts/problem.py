"""A linear function to learn, and each replica's part of its data."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from torch_hal import Module

WEIGHTS = torch.tensor([[1.0, -2.0, 3.0, 0.5]])


def loader_of(number: int, items: int = 96, batch_size: int = 8) -> DataLoader[Any]:
    """The own data of a replica, the same in each epoch."""
    inputs = torch.randn(items, 4, generator=torch.Generator().manual_seed(number))
    return DataLoader(TensorDataset(inputs, inputs @ WEIGHTS.T), batch_size=batch_size)


class Linear(Module):
    """Replicas begin with the same weights, unless ``seed`` says otherwise."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.net = nn.Linear(4, 1)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.5)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.98)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}
