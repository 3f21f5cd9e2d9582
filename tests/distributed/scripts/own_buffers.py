"""Resumes runs in which each process keeps its own buffers, by the Trainer and by Runtime."""

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from core import Module, Runtime, Trainer, seed_everything
from core.callbacks import ModelCheckpoint
from core.strategies import DDPStrategy

OUT = Path(os.environ["OUT"])
ITEMS = torch.randn(54, 4, generator=torch.Generator().manual_seed(1)) + torch.arange(54)[:, None] / 10


def model() -> nn.Module:
    seed_everything(0)
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))


def loader() -> DataLoader[Any]:
    return DataLoader(TensorDataset(ITEMS), batch_size=4, shuffle=True)


def strategy() -> DDPStrategy:
    return DDPStrategy(broadcast_buffers=False)


def state(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


class Normed(Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = model()

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss: Tensor = self.model(batch[0]).square().mean()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05)


def fitted(folder: str, ckpt_path: Path | None = None) -> dict[str, Tensor]:
    module = Normed()
    trainer = Trainer(
        accelerator="cpu",
        strategy=strategy(),
        devices=3,
        max_epochs=2,
        callbacks=ModelCheckpoint(OUT / folder, filename="{step}", every_n_train_steps=3, save_top_k=-1),
        enable_progress_bar=False,
        logger=False,
    )
    trainer.fit(module, loader(), ckpt_path=ckpt_path)
    return state(module)


def looped(saves: bool) -> dict[str, Tensor]:
    runtime = Runtime(accelerator="cpu", strategy=strategy(), devices=3)
    module = model()
    prepared, optimizer, batches = runtime.prepare(module, torch.optim.SGD(module.parameters(), lr=0.05), loader())
    if not saves:
        runtime.load_state(OUT / "state")
    for index, (batch,) in enumerate(batches):
        runtime.backward(prepared(batch).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        if index == 2 and saves:
            runtime.save_state(str(OUT / "state"))
    return state(module)


if __name__ == "__main__":
    found = {"whole": fitted("whole"), "resumed": fitted("resumed", OUT / "whole" / "step=6.ckpt")}
    found |= {"loop": looped(saves=True), "loop resumed": looped(saves=False)}
    torch.save(found, OUT / os.environ["RANK"])
