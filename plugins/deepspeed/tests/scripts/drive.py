"""An optimizer on a drive: training, what a checkpoint is good for, and that it is not resumed."""

from __future__ import annotations

import json
from typing import Any

import torch
from problem import OUT
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torch_hal_deepspeed import DeepSpeedStrategy

import core
from core.errors import CheckpointError

WIDTH = 1500  # parts below a megabyte are not swapped


class Lesson(core.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
        self.losses: list[float] = []

    def loss(self, batch: list[Tensor]) -> Tensor:
        loss: Tensor = (self.net(batch[0]) - 1).square().mean()
        return loss

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("found", self.loss(batch))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-4)


def trainer(strategy: str | core.Strategy, epochs: int = 1) -> core.Trainer:
    return core.Trainer(
        accelerator="cpu",
        devices=1,
        strategy=strategy,
        max_epochs=epochs,
        enable_progress_bar=False,
        default_root_dir=OUT,
    )


def on_drive() -> DeepSpeedStrategy:
    return DeepSpeedStrategy(stage=3, offload_optimizer="nvme", offload_parameters="nvme", nvme_path=OUT)


def main() -> None:
    torch.manual_seed(0)
    data = DataLoader(TensorDataset(torch.randn(64, WIDTH)), batch_size=8)
    fit = trainer(on_drive())
    lesson = Lesson()
    swapped: list[int] = []

    class Counting(core.Callback):
        def on_fit_end(self, trainer: core.Trainer, module: core.Module) -> None:
            strategy: Any = trainer.strategy
            swapped.append(len(strategy.engine.optimizer.optimizer_swapper.swap_params_info))

    fit.callbacks.append(Counting())
    fit.fit(lesson, data)
    saved = next((OUT / "checkpoints").iterdir())
    evaluated = trainer(on_drive()).validate(lesson, data)
    elsewhere = trainer("single_device").validate(Lesson(), data, ckpt_path=saved)
    try:
        trainer(on_drive(), 2).fit(Lesson(), data, ckpt_path=saved)
    except CheckpointError as error:
        refused = str(error)
    said = {
        "swapped": swapped[0],
        "losses": lesson.losses,
        "evaluated": evaluated["found"],
        "elsewhere": elsewhere["found"],
        "refused": refused,
    }
    (OUT / "drive.json").write_text(json.dumps(said))


if __name__ == "__main__":
    main()
