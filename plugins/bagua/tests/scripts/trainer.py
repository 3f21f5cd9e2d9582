"""One of two processes that train with the Trainer and leave weights.

Arguments: ``whole`` for all epochs, ``resumed`` for those after the checkpoint of another run; the checkpoint's path.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torch_hal_bagua import BaguaStrategy, QAdamOptimizer

from torch_hal import Module, Trainer, seed_everything
from torch_hal.callbacks import ModelCheckpoint
from torch_hal.strategies import DDPStrategy

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.trainer_cases import ALGORITHMS, EPOCHS, RESUMED_FROM

RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


class Classifier(Module):
    """Has batch statistics and dropout, so that buffers and generators matter too."""

    def __init__(self, qadam: bool) -> None:
        super().__init__()
        self.qadam = qadam
        self.net = nn.Sequential(
            nn.Linear(12, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 16), nn.Linear(16, 4)
        )

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        inputs, targets = batch
        return nn.functional.cross_entropy(self.net(inputs), targets)

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("loss", nn.functional.cross_entropy(self.net(batch[0]), batch[1]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        if self.qadam:
            return QAdamOptimizer(self.parameters(), lr=0.01, warmup_steps=6)
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def loaders() -> list[Any]:
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(96, 12, generator=generator)
    data = TensorDataset(inputs, inputs[:, :4].argmax(1))
    return [DataLoader(data, batch_size=8, shuffle=True), DataLoader(data, batch_size=16)]


def fit(name: str, root: Path, source: Path | None, precision: str = "32-true") -> dict[str, Any]:
    algorithm, options = ALGORITHMS[name]
    strategy = DDPStrategy(bucket_cap_mb=10) if algorithm == "ddp" else BaguaStrategy(algorithm, **options)
    seed_everything(3 if source else RANK)
    module = Classifier(algorithm == "qadam")
    seed_everything(3 if source else 0)
    trainer = Trainer(
        accelerator="cpu",
        devices=WORLD_SIZE,
        strategy=strategy,
        precision=precision,
        max_epochs=EPOCHS,
        accumulate_grad_batches=2,
        gradient_clip_val=0.5,
        callbacks=[ModelCheckpoint(dirpath=root / name, filename="{epoch}", save_top_k=-1)],
        enable_progress_bar=False,
    )
    path = source / name / f"epoch={RESUMED_FROM}.ckpt" if source else None
    trainer.fit(module, *loaders(), ckpt_path=path)
    return {key: value.clone() for key, value in module.state_dict().items()}


class TwoNets(Classifier):
    """Steps two optimizers itself."""

    def __init__(self) -> None:
        super().__init__(qadam=False)
        self.automatic_optimization = False
        self.other = nn.Linear(12, 4)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> None:  # type: ignore[override]
        for optimizer, net in zip(self.optimizers(), (self.net, self.other), strict=True):
            optimizer.zero_grad()
            self.manual_backward(nn.functional.cross_entropy(net(batch[0]), batch[1]))
            optimizer.step()

    def configure_optimizers(self) -> Any:
        return [torch.optim.AdamW(net.parameters(), lr=0.01) for net in (self.net, self.other)]


def manual(strategy: Any) -> dict[str, Any]:
    seed_everything(RANK)
    module = TwoNets()
    seed_everything(0)
    Trainer(
        accelerator="cpu",
        devices=WORLD_SIZE,
        strategy=strategy,
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    ).fit(module, loaders()[0])
    return dict(module.state_dict())


def main(phase: str, where: str) -> None:
    here = Path.cwd() / phase
    source = Path(where) if phase == "resumed" else None
    torch.save({name: fit(name, here, source) for name in ALGORITHMS}, f"{phase}{RANK}.pt")
    if phase == "whole":
        torch.save([manual(DDPStrategy(bucket_cap_mb=10)), manual(BaguaStrategy())], f"manual{RANK}.pt")


if __name__ == "__main__":
    main(*sys.argv[1:])
