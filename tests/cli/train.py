"""A training script with a command line."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from core import DataModule, Module
from core.cli import CLI


class Line(Module):
    """A linear model.

    Args:
        lr: The learning rate.
        bias: Whether there is a bias.
        name: What to call it.
    """

    def __init__(self, lr: float = 0.1, bias: bool = True, name: str | None = "line") -> None:
        super().__init__()
        self.lr, self.name = lr, name
        self.layer = torch.nn.Linear(4, 1, bias=bias)

    def forward(self, inputs: Any) -> Any:
        return self.layer(inputs)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.layer(batch[0]).square().mean()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("loss", self.layer(batch[0]).square().mean())

    test_step = validation_step

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        return self.layer(batch[0])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.lr)


class Bent(Line):
    """A line with another default."""

    def __init__(self, lr: float = 0.5, degree: int = 2) -> None:
        super().__init__(lr)
        self.degree = degree


class WithoutOptimizer(Module):
    """A model that leaves the optimizer to the command line."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.layer(batch[0]).square().mean()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Nothing to evaluate."""


class Ones(DataModule):
    """Random numbers.

    Args:
        batch_size: The items of a batch.
    """

    def __init__(self, batch_size: int = 8) -> None:
        self.batch_size = batch_size

    def loader(self) -> Any:
        numbers = torch.randn(32, 4, generator=torch.Generator().manual_seed(1))
        return DataLoader(TensorDataset(numbers), batch_size=self.batch_size)

    train_dataloader = val_dataloader = test_dataloader = predict_dataloader = loader


if __name__ == "__main__":
    cli = CLI(Line, Ones)
    cli.trainer.runtime.print("ended", cli.subcommand, cli.trainer.global_step, cli.model.layer.weight.sum().item())
