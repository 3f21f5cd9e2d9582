"""What the tests train, and what plain loops on the CPU make of it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from core import Module

BATCH = 8
EPOCHS = 2
OPTIONS: dict[str, Any] = {
    "max_epochs": EPOCHS,
    "enable_progress_bar": False,
    "enable_checkpointing": False,
    "logger": False,
}


def data() -> TensorDataset:
    """64 items in a fixed order."""
    inputs = torch.randn(64, 6, generator=torch.Generator().manual_seed(1))
    return TensorDataset(inputs, inputs[:, :3].argmax(1))


class Classifier(Module):
    """Notes its losses, and the devices and dtypes that it sees."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 3))
        self.losses: list[float] = []
        self.seen: set[str] = set()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The loss of one batch."""
        inputs, labels = batch
        output = self.net(inputs)
        loss = nn.functional.cross_entropy(output, labels)
        self.seen |= {str(tensor.device) for tensor in (inputs, labels, output, *self.net.parameters())}
        self.seen.add(str(output.dtype).removeprefix("torch."))
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Momentum, so that a step depends on those before it."""
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def loader() -> DataLoader[Any]:
    """The items in batches, in their order."""
    return DataLoader(data(), batch_size=BATCH)


def losses_by_hand(
    net: nn.Module, autocast: torch.dtype | None = None, rank: int = 0, processes: int = 1
) -> list[float]:
    """The losses of a plain loop on the CPU over this process's share of the items."""
    # A global batch is a batch for each process, by rank.
    inputs, labels = (
        items.reshape(-1, processes, BATCH, *items.shape[1:])[:, rank].flatten(0, 1) for items in data().tensors
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", enabled=autocast is torch.float16)
    losses = []
    for _ in range(EPOCHS):
        for begin in range(0, len(inputs), BATCH):
            with torch.autocast("cpu", dtype=autocast or torch.bfloat16, enabled=autocast is not None):
                output = net(inputs[begin : begin + BATCH])
                loss = nn.functional.cross_entropy(output, labels[begin : begin + BATCH])
            optimizer.zero_grad()
            scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
    return losses
