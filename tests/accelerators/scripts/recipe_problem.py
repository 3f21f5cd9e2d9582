"""What the recipe's scripts train, and what plain loops on the CPU make of it."""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from core import Module

_BATCH = 8
_EPOCHS = 2

OPTIONS: dict[str, Any] = {
    "max_epochs": _EPOCHS,
    "enable_progress_bar": False,
    "enable_checkpointing": False,
    "logger": False,
}
"""What every Trainer here is given."""


def loader() -> DataLoader[Any]:
    """64 items in a fixed order."""
    draw = torch.Generator().manual_seed(1)
    inputs = torch.randn(64, 6, generator=draw)
    return DataLoader(TensorDataset(inputs, inputs[:, :3].argmax(1)), batch_size=_BATCH)


class Classifier(Module):
    """Notes where it was trained."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))
        self.seen: set[str] = set()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The loss of one batch; the devices and the dtype of this step are noted."""
        inputs, labels = batch
        output = self.net(inputs)
        devices = {str(tensor.device) for tensor in (inputs, labels, output, *self.net.parameters())}
        self.seen |= devices | {str(output.dtype).removeprefix("torch.")}
        if dist.is_initialized():
            self.seen.add(dist.get_backend())
        return nn.functional.cross_entropy(output, labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Momentum, so that a step depends on those before it."""
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

    def assert_trained(self, expected: nn.Module, *seen: str) -> None:
        """The parameters are those of ``expected`` bit for bit, and training has seen exactly ``seen``."""
        assert self.seen == set(seen), self.seen
        for parameter, other in zip(self.net.parameters(), expected.parameters(), strict=True):
            assert torch.equal(parameter.detach().cpu(), other.detach())


def trained_by_hand(processes: int = 1, autocast: torch.dtype | None = None) -> nn.Module:
    """A plain loop on the CPU; the gradients of several processes' shares of the data are averaged by hand."""
    net = Classifier().net
    start = copy.deepcopy(net.state_dict())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    inputs, labels = loader().dataset[:]
    for _ in range(_EPOCHS):
        for begin in range(0, len(inputs), _BATCH * processes):
            optimizer.zero_grad()
            gradients = []
            for process in range(processes):
                share = slice(begin + process * _BATCH, begin + (process + 1) * _BATCH)
                with _autocast(autocast):
                    loss = nn.functional.cross_entropy(net(inputs[share]), labels[share])
                gradients.append(torch.autograd.grad(loss, list(net.parameters())))
            for parameter, *parts in zip(net.parameters(), *gradients, strict=True):
                parameter.grad = sum((part / processes for part in parts), torch.zeros(()))
            optimizer.step()
    assert any(not torch.equal(start[name], value) for name, value in net.state_dict().items())
    return net


def _autocast(dtype: torch.dtype | None) -> AbstractContextManager[Any]:
    return torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None)
