"""What the tests train, and what a plain loop on the CPU makes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from torch_hal import Module
from torch_hal.callbacks import Callback

OPTIONS: dict[str, Any] = {
    "enable_progress_bar": False,
    "enable_checkpointing": False,
    "logger": False,
    "num_sanity_val_steps": 0,
}
MakeOptimizer = Callable[[Any], torch.optim.Optimizer]


def data(items: int = 64) -> TensorDataset:
    """So many items in a fixed order."""
    inputs = torch.randn(items, 6, generator=torch.Generator().manual_seed(1))
    return TensorDataset(inputs, inputs[:, :3].argmax(1))


def loader(items: int = 64, batch_size: int = 16) -> DataLoader[Any]:
    """The items in batches, in their order."""
    return DataLoader(data(items), batch_size=batch_size)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    """Momentum, so that a step depends on those before it."""
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def net() -> nn.Sequential:
    """The same each time."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))


class Classifier(Module):
    """A net with all steps; each one's Python is counted."""

    def __init__(self, make_optimizer: MakeOptimizer = sgd) -> None:
        super().__init__()
        self.net = net()
        self.make_optimizer = make_optimizer
        self.runs = 0

    def _loss(self, batch: Any) -> tuple[Tensor, Tensor]:
        inputs, labels = batch
        output = self.net(inputs)
        return nn.functional.cross_entropy(output, labels), (output.argmax(1) == labels).float().mean()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """The loss of one batch, which is logged too."""
        self.runs += 1
        loss, accuracy = self._loss(batch)
        self.log_dict({"loss": loss, "accuracy": accuracy}, on_step=True, on_epoch=True)
        return {"loss": loss}

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Returns nothing and logs two values."""
        loss, accuracy = self._loss(batch)
        self.log("val_loss", loss)
        self.log("val_correct", accuracy * len(batch[1]), reduce_fx="sum")

    def test_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The loss."""
        loss, _ = self._loss(batch)
        self.log("test_loss", loss)
        return loss

    def predict_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        """Nested tensors."""
        output = self.net(batch[0])
        return {"output": output, "best": (output.argmax(1), "as it is")}

    def configure_optimizers(self) -> Any:
        """As the test says."""
        return self.make_optimizer(self.parameters())


class Losses(Callback):
    """Notes what each training step gave."""

    def __init__(self) -> None:
        self.losses: list[float | None] = []

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Note it."""
        self.losses.append(None if outputs is None else float(outputs))


def by_hand(
    model: nn.Module,
    *,
    make_optimizer: MakeOptimizer = sgd,
    epochs: int = 2,
    items: int = 64,
    batch_size: int = 16,
    accumulate: int = 1,
    iterations: int = 1,
    clip: float | None = None,
    learning_rate: Callable[[int], float] | None = None,
) -> list[float]:
    """The losses of a plain loop on the CPU, one for each ``accumulate`` batches, which make ``iterations`` steps.

    Args:
        learning_rate: By the number of the call, from 0.
    """
    inputs, labels = data(items).tensors
    optimizer = make_optimizer(model.parameters())
    losses: list[float] = []
    size = batch_size * accumulate
    for _ in range(epochs):
        for begin in range(0, items, size):
            batch = inputs[begin : begin + size], labels[begin : begin + size]
            share = -(-len(batch[0]) // batch_size) / accumulate
            of_parts = []
            if learning_rate is not None:
                optimizer.param_groups[0]["lr"] = learning_rate(len(losses))
            for x, y in zip(*(tensor.chunk(iterations) for tensor in batch), strict=True):
                loss = nn.functional.cross_entropy(model(x), y)
                optimizer.zero_grad()
                (loss * share).backward()  # type: ignore[no-untyped-call]
                if clip is not None:
                    nn.utils.clip_grad_norm_(model.parameters(), clip)
                optimizer.step()
                of_parts.append(loss.item())
            losses.append(sum(of_parts) / iterations)
    return losses


def apart(first: nn.Module, second: nn.Module) -> float:
    """The largest difference of two models' parameters."""
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)
