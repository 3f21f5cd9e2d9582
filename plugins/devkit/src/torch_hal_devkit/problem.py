"""The small problem that the suites train, and plain loops on the CPU that compute the expected results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from torch_hal import Callback, Module

__all__ = [
    "EPOCHS",
    "OPTIONS",
    "Classifier",
    "Losses",
    "by_hand",
    "data",
    "largest_difference",
    "loader",
    "network",
    "optimizer_of",
    "outputs_by_hand",
]

ITEMS = 64
BATCH = 8
EPOCHS = 2

OPTIONS: dict[str, Any] = {
    "max_epochs": EPOCHS,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "enable_checkpointing": False,
    "logger": False,
}
"""Arguments of every Trainer in the suites."""


def data() -> TensorDataset:
    """64 items of 6 numbers with one of 3 labels, in a fixed order."""
    inputs = torch.randn(ITEMS, 6, generator=torch.Generator().manual_seed(1))
    return TensorDataset(inputs, inputs[:, :3].argmax(1))


def loader(processes: int = 1) -> DataLoader[Any]:
    """The items in batches of 8, in order; with several processes, each has batches of its share."""
    return DataLoader(data(), batch_size=BATCH // processes)


def network() -> nn.Module:
    """A network with parameters, and with buffers that training changes; always the same."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 3))


def optimizer_of(net: nn.Module) -> torch.optim.Optimizer:
    """An optimizer with momentum, so that a step depends on earlier ones."""
    return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


class Classifier(Module):
    """:func:`network` with its steps."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def forward(self, inputs: Tensor) -> Any:
        """The scores of the labels."""
        return self.net(inputs)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The loss of one batch."""
        inputs, labels = batch
        return nn.functional.cross_entropy(self.net(inputs), labels)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Log the loss of one batch."""
        self.log("loss", self.training_step(batch, batch_idx))

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        """The scores of one batch."""
        return self.net(batch[0])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """See :func:`optimizer_of`."""
        return optimizer_of(self)


class Losses(Callback):
    """Records the loss of each training step, on any device."""

    def __init__(self) -> None:
        self._losses: list[Any] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Record the loss without waiting for the device."""
        self._losses.append(outputs)

    @property
    def values(self) -> list[float]:
        """The losses so far."""
        return [float(loss) for loss in self._losses]


def by_hand(dtype: torch.dtype = torch.float32, epochs: int = EPOCHS) -> tuple[list[float], dict[str, Tensor]]:
    """Train the problem in a plain loop on the CPU, in ``dtype``; return the losses and the module's state."""
    net = network().to(dtype)
    optimizer = optimizer_of(net)
    inputs, labels = data().tensors
    inputs = inputs.to(dtype)
    losses = []
    for _ in range(epochs):
        for begin in range(0, ITEMS, BATCH):
            loss = nn.functional.cross_entropy(net(inputs[begin : begin + BATCH]), labels[begin : begin + BATCH])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(loss.item())
    return losses, net.state_dict()


def outputs_by_hand() -> tuple[Tensor, float]:
    """Return the outputs of :func:`network` for all items on the CPU in evaluation mode, and their mean loss."""
    net = network().eval()
    inputs, labels = data().tensors
    with torch.no_grad():
        scores: Tensor = net(inputs)
        return scores, nn.functional.cross_entropy(scores, labels).item()


def largest_difference(found: Sequence[float], expected: Sequence[float]) -> float:
    """The largest difference between two lists of the same length."""
    return max(abs(a - b) for a, b in zip(found, expected, strict=True))
