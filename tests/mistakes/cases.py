"""What the tables of mistakes share: the rule for messages, and a small problem."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from core import Module, Runtime, Trainer
from core.errors import CoreError

__all__ = ["Mistake", "Net", "loader", "runtime", "trainer", "unprepared", "check"]


class Mistake(NamedTuple):
    """A mistake that users make, and what its message must say."""

    make: Callable[[], Any]
    """Makes it."""
    argument: str
    """The argument, the method or the variable that is wrong."""
    given: str
    """What was given."""
    remedy: str
    """What to do."""


def check(mistake: Mistake) -> None:
    """The message names the argument, what was given, and what to do: three of three."""
    with pytest.raises(CoreError) as caught:
        mistake.make()
    message = str(caught.value)
    missing = [each for each in (mistake.argument, mistake.given, mistake.remedy) if each not in message]
    assert not missing, f"{missing} not in: {message}"
    assert len(message) < 1500, "too long to be read"


class Net(Module):
    """The smallest module that trains."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def loss(self, batch: Any) -> Tensor:
        loss: Tensor = (self.layer(batch[0]) - batch[1]).square().mean()
        return loss

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.loss(batch)

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def loader() -> DataLoader[Any]:
    """Three batches."""
    return DataLoader(TensorDataset(torch.randn(12, 3), torch.randn(12, 1)), batch_size=4)


QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "devices": 1,
    "max_epochs": 1,
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


def trainer(**arguments: Any) -> Trainer:
    """A Trainer that writes nothing."""
    return Trainer(**{**QUIET, **arguments})


def runtime(**arguments: Any) -> Runtime:
    """A Runtime on one process."""
    return Runtime(**{"accelerator": "cpu", "devices": 1, **arguments})


def unprepared(precision: str) -> None:
    """A loop that forgets to prepare its optimizer."""
    run = runtime(precision=precision)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model = run.prepare(model)
    try:
        run.backward(model(torch.randn(4, 3)).square().mean())
        optimizer.step()
    finally:
        run.teardown()
