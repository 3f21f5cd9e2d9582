"""A small problem, its weights by hand on the CPU, and where scripts write what they saw."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

OUT = Path(os.environ["OUT"])
EPOCHS, BATCH = 2, 8


def network() -> nn.Module:
    """Always with the same weights; two layers share theirs."""
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16), nn.Linear(16, 3))
    net[4].weight = net[2].weight
    return net


def loader(batch_size: int = BATCH) -> DataLoader[Any]:
    """In their order."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(64, 8, generator=generator)
    return DataLoader(TensorDataset(inputs, torch.randint(0, 3, (64,), generator=generator)), batch_size=batch_size)


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    """With momentum."""
    return torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)


def by_hand(processes: int, autocast: bool = False) -> list[Tensor]:
    """The weights after training on the CPU, in one process with as large batches."""
    net = network()
    optimizer = sgd(net)
    for _ in range(EPOCHS):
        for inputs, targets in loader(BATCH * processes):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = nn.functional.cross_entropy(net(inputs), targets)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return weights(net)


def weights(module: nn.Module) -> list[Tensor]:
    """On the CPU."""
    return [parameter.detach().cpu().clone() for parameter in module.parameters()]


def distance(one: list[Tensor], other: list[Tensor]) -> float:
    """The largest difference between two networks' weights."""
    return max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True))


def say(rank: int, said: dict[str, Any]) -> None:
    """From process 0."""
    if rank == 0:
        (OUT / "said.json").write_text(json.dumps(said))
