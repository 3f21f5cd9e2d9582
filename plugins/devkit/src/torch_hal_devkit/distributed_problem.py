"""The problem that several processes train, and a plain loop on the CPU over their global batches.

It uses no batch statistics, so that several processes with a share of a batch each compute what one process with the
whole batch computes. Its one buffer counts training passes, its optimizer has two groups of parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from torch_hal import Module
from torch_hal.discovery.loading import import_target

__all__ = [
    "EPOCHS",
    "OPTIMIZER",
    "SHARE",
    "STEPS",
    "Counter",
    "Regression",
    "Stream",
    "by_hand",
    "items",
    "loader",
    "loss_of",
    "network",
    "optimizer_of",
]

SHARE = 4
"""Items of a batch in each process."""
STEPS = 6
"""Batches of an epoch."""
EPOCHS = 2
FEATURES = 5
DECAY = 0.8
"""The factor by which a scheduler lowers the rates."""
OPTIMIZER = "torch_hal_devkit.distributed_problem:momentum"
"""The default function that creates the optimizer."""


def items(count: int) -> TensorDataset:
    """``count`` items of 5 numbers with a target; the first number identifies the item."""
    numbers = torch.randn(count, FEATURES, generator=torch.Generator().manual_seed(2))
    numbers[:, 0] = torch.arange(count) / count
    return TensorDataset(numbers, (numbers.sum(1, keepdim=True) + numbers[:, 1:2].sin()) / 2)


def loader(shards: int) -> DataLoader[Any]:
    """The batches of an epoch in order, to be split into ``shards`` parts: each process takes 4 items of a batch."""
    return DataLoader(items(SHARE * STEPS * shards), batch_size=SHARE)


class Stream(IterableDataset[Any]):
    """A stream of items without a length."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[Any]:
        return iter(items(self.count))


class Counter(nn.Module):
    """Passes on what it is given; its buffer counts the passes in training mode."""

    passes: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("passes", torch.zeros(1))

    def forward(self, inputs: Tensor) -> Tensor:
        """``inputs``."""
        if self.training:
            self.passes.add_(1)
        return inputs


def network() -> nn.Module:
    """The network; always the same."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, 1), Counter())


def momentum(net: nn.Module) -> torch.optim.Optimizer:
    """An optimizer with momentum, so that a step depends on earlier ones, and a rate for each of its two groups."""
    named = [*net.named_parameters()]
    weights: dict[str, Any] = {"params": [parameter for name, parameter in named if name.endswith("weight")]}
    biases: dict[str, Any] = {"params": [parameter for name, parameter in named if name.endswith("bias")], "lr": 0.7}
    return torch.optim.SGD([weights, biases], lr=1.0, momentum=0.9)


def optimizer_of(net: nn.Module, maker: str = OPTIMIZER) -> torch.optim.Optimizer:
    """Create the optimizer with ``maker``, the ``"module:function"`` that is called with the network."""
    made: torch.optim.Optimizer = import_target(maker)(net)
    return made


def loss_of(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean loss, small enough for 16-bit gradients at the initial scale of a loss scaler."""
    return ((outputs - targets) ** 2).mean() / 20


class Regression(Module):
    """:func:`network` with its steps, and the optimizer that ``maker`` creates.

    Args:
        maker: As in :func:`optimizer_of`.
        decays: Whether a scheduler lowers the rates after each step.
    """

    def __init__(self, maker: str = OPTIMIZER, *, decays: bool = False) -> None:
        super().__init__()
        self.net = network()
        self.maker = maker
        self.decays = decays

    def forward(self, inputs: Tensor) -> Any:
        """One number for each item."""
        return self.net(inputs)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The loss of one batch."""
        inputs, targets = batch
        return loss_of(self.net(inputs), targets)

    def training_step_end(self, output: Any) -> Any:
        """The mean of the parts, where one process splits a batch over several devices."""
        return torch.stack(output).mean() if isinstance(output, list) else output.mean()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Log the loss of one batch."""
        self.log("loss", self.training_step(batch, batch_idx))

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        """The items' identifying numbers next to the network's outputs."""
        return torch.cat([batch[0][:, :1], self.net(batch[0])], 1)

    def configure_optimizers(self) -> Any:
        """See :func:`optimizer_of`."""
        optimizer = optimizer_of(self, self.maker)
        if not self.decays:
            return optimizer
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, DECAY)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def by_hand(
    shards: int,
    *,
    maker: str = OPTIMIZER,
    accumulate: int = 1,
    clip_value: float | None = None,
    algorithm: str = "norm",
    decays: bool = False,
) -> tuple[list[float], dict[str, Tensor]]:
    """Train in a plain loop on the CPU over global batches; return the loss of each, and the network's state.

    Args:
        shards: The number of processes whose batches form a global batch.
        maker: As in :func:`optimizer_of`.
        accumulate: Global batches per step; the last step of an epoch may have fewer.
        clip_value: The largest norm or value of gradients.
        algorithm: ``"norm"`` or ``"value"``.
        decays: Whether a scheduler lowers the rates after each step, as that of :class:`Regression`.
    """
    net = network()
    optimizer = optimizer_of(net, maker)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, DECAY if decays else 1.0)
    size = SHARE * shards
    inputs, targets = items(size * STEPS).tensors
    losses = []
    for _ in range(EPOCHS):
        for begin in range(0, size * STEPS, size * accumulate):
            chosen = slice(begin, begin + size * accumulate)
            outputs = net(inputs[chosen])
            for part, target in zip(torch.split(outputs, size), torch.split(targets[chosen], size), strict=True):
                losses.append(loss_of(part, target).item())
            window = -(-len(outputs) // size)
            net[3].passes.add_(window - 1)  # type: ignore[index]
            optimizer.zero_grad()
            # Each loss of a window is divided by the number of a whole one, in the last window of an epoch too.
            (loss_of(outputs, targets[chosen]) * (window / accumulate)).backward()  # type: ignore[no-untyped-call]
            if clip_value is not None and algorithm == "norm":
                nn.utils.clip_grad_norm_(net.parameters(), clip_value)
            elif clip_value is not None:
                nn.utils.clip_grad_value_(net.parameters(), clip_value)
            optimizer.step()
            scheduler.step()
    return losses, net.state_dict()
