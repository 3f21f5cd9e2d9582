"""The small problem that the tests of the Trainer solve."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from core import Module, Trainer

ITEMS = 50


def dataset(items: int = ITEMS) -> TensorDataset:
    """``items`` rows of six numbers, and what is to be found from them."""
    inputs = torch.randn(items, 6, generator=torch.Generator().manual_seed(7))
    return TensorDataset(inputs, inputs.sum(1, keepdim=True) + inputs[:, :1].sin())


def loader(batch_size: int = 8, **options: Any) -> DataLoader[Any]:
    """Seven batches, the last of two rows."""
    return DataLoader(dataset(), batch_size=batch_size, **options)


def network() -> nn.Sequential:
    """One with dropout, so that every draw of a random number shows in its parameters."""
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1))


class Regression(Module):
    """The network with its steps."""

    def __init__(self) -> None:
        super().__init__()
        self.network = network()

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.network(inputs)
        return outputs

    def loss(self, batch: Any) -> Tensor:
        return nn.functional.mse_loss(self(batch[0]), batch[1])

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.loss(batch)

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("error", self.loss(batch))

    def test_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("test_error", self.loss(batch))

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        return self(batch[0])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


def quiet(**settings: Any) -> Trainer:
    """A Trainer on one process without bar, summary, checkpoints, loggers or sanity check; ``settings`` change that."""
    defaults: dict[str, Any] = {
        "devices": 1,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
        "logger": False,
        "num_sanity_val_steps": 0,
    }
    return Trainer(accelerator="cpu", **{**defaults, **settings})


def assert_same(one: nn.Module, other: nn.Module) -> None:
    """Parameters and buffers are equal bit for bit."""
    first, second = one.state_dict(), other.state_dict()
    assert first.keys() == second.keys()
    for name in first:
        assert first[name].isfinite().all(), name
        assert torch.equal(first[name], second[name]), name
