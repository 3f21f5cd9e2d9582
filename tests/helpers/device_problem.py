"""What plugins' tests train on simulated devices, and what a plain loop on the CPU makes of it."""

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
    "num_sanity_val_steps": 0,
    "logger": False,
}


def net() -> nn.Module:
    """The same parameters each time."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))


def loader() -> DataLoader[Any]:
    """64 items in batches, in their order."""
    inputs = torch.randn(64, 6, generator=torch.Generator().manual_seed(1))
    return DataLoader(TensorDataset(inputs, inputs[:, :3].argmax(1)), batch_size=BATCH)


def optimizer_of(module: nn.Module) -> torch.optim.Optimizer:
    """Momentum, so that a step depends on those before it."""
    return torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)


def losses_on_the_cpu(rank: int = 0, processes: int = 1) -> list[float]:
    """The losses of a process in a plain loop: gradients of all processes are averaged."""
    module, losses = net(), []
    optimizer = optimizer_of(module)
    inputs, labels = (tensor.split(BATCH) for tensor in loader().dataset.tensors)  # type: ignore[attr-defined]
    for _ in range(EPOCHS):
        for first in range(0, len(inputs), processes):
            parts = range(first, first + processes)
            found = [nn.functional.cross_entropy(module(inputs[part]), labels[part]) for part in parts]
            optimizer.zero_grad()
            torch.stack(found).mean().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(found[rank].item())
    return losses


class Classifier(Module):
    """Records its losses, and the devices that it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net()
        self.losses: list[float] = []
        self.seen: set[str] = set()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The loss of one batch."""
        inputs, labels = batch
        output = self.net(inputs)
        loss = nn.functional.cross_entropy(output, labels)
        self.seen |= {str(tensor.device) for tensor in (inputs, labels, output, *self.net.parameters())}
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """The loss of one batch, logged."""
        inputs, labels = batch
        self.log("validation_loss", nn.functional.cross_entropy(self.net(inputs), labels))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The optimizer of the plain loop."""
        return optimizer_of(self)
