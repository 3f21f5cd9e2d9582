"""What the tests train, and what plain loops on the CPU make of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from torch_hal import Module

BATCH = 8
EPOCHS = 2
OPTIONS: dict[str, Any] = {
    "max_epochs": EPOCHS,
    "enable_progress_bar": False,
    "enable_checkpointing": False,
    "num_sanity_val_steps": 0,
    "logger": False,
}


def data(items: int = 48) -> TensorDataset:
    """Items in a fixed order."""
    inputs = torch.randn(items, 6, generator=torch.Generator().manual_seed(1))
    return TensorDataset(inputs, inputs[:, :3].argmax(1))


def loader(items: int = 48) -> DataLoader[Any]:
    """The items in batches, in their order."""
    return DataLoader(data(items), batch_size=BATCH)


def make_net() -> nn.Module:
    """The same each time."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.LayerNorm(12), nn.Linear(12, 3))


class Classifier(Module):
    """Notes on which devices its parts run."""

    def __init__(self) -> None:
        super().__init__()
        self.net = make_net()
        self.seen: list[str] = []

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.net(inputs)
        return logits

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """The loss of a part, and as a value of each step."""
        inputs, labels = batch
        logits = self(inputs)
        loss = nn.functional.cross_entropy(logits, labels)
        self.seen.append(f"{self.device} {inputs.device} {len(inputs)} {logits.dtype}".replace("torch.", ""))
        self.log("loss", loss, on_step=True, on_epoch=True)
        self.log("correct", (logits.argmax(1) == labels).sum(), on_epoch=True, on_step=False, reduce_fx="sum")
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """The mean loss over all items."""
        self.seen.append(f"{batch[0].device} {len(batch[0])}")
        self.log("val_loss", nn.functional.cross_entropy(self(batch[0]), batch[1]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Momentum, so that a step depends on those before it."""
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def by_hand(
    items: int = 48, autocast: torch.dtype | None = None, accumulate: int = 1, clip: float | None = None
) -> tuple[nn.Module, list[float]]:
    """The trained net, and the losses, of a plain loop on the CPU over whole batches."""
    net = make_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(EPOCHS):
        for number, (inputs, labels) in enumerate(batches(items), start=1):
            with torch.autocast("cpu", dtype=autocast or torch.bfloat16, enabled=autocast is not None):
                loss = nn.functional.cross_entropy(net(inputs), labels)
            (loss / accumulate).backward()  # type: ignore[no-untyped-call]
            losses.append(loss.item())
            if number % accumulate == 0:
                if clip is not None:
                    nn.utils.clip_grad_norm_(net.parameters(), clip)
                optimizer.step()
                optimizer.zero_grad()
    return net, losses


def batches(items: int = 48) -> Iterator[list[Tensor]]:
    """One epoch's."""
    return iter(loader(items))
