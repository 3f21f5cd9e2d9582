"""A small problem, its losses by hand on the CPU, and where scripts write what they saw."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

OUT = Path(os.environ["OUT"])
EPOCHS, BATCH = 2, 8


def network(dropout: float = 0.0) -> nn.Module:
    """Always with the same weights; two layers share theirs."""
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.Dropout(dropout), nn.Linear(16, 16))
    net[4].weight = net[2].weight
    return nn.Sequential(net, nn.Linear(16, 3))


def is_tied(net: Any) -> bool:
    """Whether the two layers still share their weights."""
    return bool(net[0][4].weight is net[0][2].weight)


def data() -> TensorDataset:
    """The samples."""
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(64, 8, generator=generator), torch.randint(0, 3, (64,), generator=generator))


def loader(**options: Any) -> DataLoader[Any]:
    """In their order, unless shuffled."""
    return DataLoader(data(), **{"batch_size": BATCH, **options})


def part(rank: int) -> DataLoader[Any]:
    """The part of one of two processes, in its order: Lightning's own sampler shuffles."""
    sampler: DistributedSampler[Any] = DistributedSampler(data(), 2, rank, shuffle=False)
    return loader(sampler=sampler)


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    """With momentum."""
    return torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)


def by_hand(processes: int, autocast: bool = False, every: int = 1) -> list[Tensor]:
    """The weights after training on the CPU, in one process with as large batches."""
    net = network()
    optimizer = sgd(net)
    for _ in range(EPOCHS):
        for number, (inputs, targets) in enumerate(loader(batch_size=BATCH * processes), start=1):
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = nn.functional.cross_entropy(net(inputs), targets)
            (loss / every).backward()  # type: ignore[no-untyped-call]
            if number % every == 0:
                optimizer.step()
                optimizer.zero_grad()
    return weights(net)


def weights(module: nn.Module) -> list[Tensor]:
    """On the CPU, whole."""
    return [getattr(p, "full_tensor", lambda p=p: p)().detach().float().cpu().clone() for p in module.parameters()]


def distance(one: list[Tensor], other: list[Tensor]) -> float:
    """The largest difference between two networks' weights."""
    return max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True))


class Classifier(LightningModule):  # type: ignore[misc]
    """Trains the network under Lightning."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.net = network(dropout)
        self.seen: dict[str, str] = {}
        self.first = [id(parameter) for parameter in self.parameters()]

    def kept(self) -> bool:
        """Whether the parameters are the objects that they were, on the host again."""
        now = [id(parameter) for parameter in self.parameters() if parameter.device.type == "cpu"]
        return now == self.first

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        output = self.net(batch[0])
        self.seen = {"device": str(batch[0].device), "dtype": str(output.dtype)}
        loss = nn.functional.cross_entropy(output, batch[1])
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("rank", float(self.global_rank), sync_dist=True, on_epoch=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return sgd(self.net)


def quiet(**options: Any) -> dict[str, Any]:
    """Arguments of a Trainer that prints nothing."""
    return {
        "max_epochs": EPOCHS,
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "use_distributed_sampler": False,
        "default_root_dir": str(OUT),
        **options,
    }


def say(rank: int, said: dict[str, Any]) -> None:
    """From process 0."""
    if rank == 0:
        (OUT / "said.json").write_text(json.dumps(said))
