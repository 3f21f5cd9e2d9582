"""Trains on a different stream in each process, of which one ends first; then resumes from each checkpoint."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from core import Module, Trainer
from core.callbacks import ModelCheckpoint

OUT = Path(os.environ["OUT"])
SIZES = [5, 3, 4]
"""Items of each process, each a batch."""


class Stream(IterableDataset[Tensor]):
    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __iter__(self) -> Iterator[Tensor]:
        for index in range(SIZES[self.rank]):
            yield torch.tensor([float(self.rank), float(index)])


class Streamed(Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Linear(2, 1)
        nn.init.constant_(self.model.weight, 0.5)
        nn.init.zeros_(self.model.bias)
        self.seen: list[int] = []

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        self.seen.append(batch_idx)
        loss: Tensor = (self.model(batch) - 1).square().mean()
        self.log("loss", loss, on_step=True, on_epoch=True, sync_dist=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05)

    def train_dataloader(self) -> Any:
        return DataLoader(Stream(self.trainer.global_rank), batch_size=1)


def fitted(folder: str = "", ckpt_path: Path | None = None, **options: Any) -> dict[str, Any]:
    module = Streamed()
    saving = ModelCheckpoint(OUT / folder, filename="{step}", every_n_train_steps=1, save_top_k=-1)
    trainer = Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=3,
        max_epochs=2,
        use_distributed_sampler=False,
        callbacks=saving if folder else None,
        enable_checkpointing=bool(folder),
        enable_progress_bar=False,
        logger=False,
        **options,
    )
    trainer.fit(module, ckpt_path=ckpt_path)
    found = {name: value.clone() for name, value in module.state_dict().items()}
    loss = trainer.callback_metrics["loss_epoch"]
    return {"state": found, "steps": trainer.global_step, "seen": module.seen, "loss": float(loss)}


if __name__ == "__main__":
    said = {"whole": fitted("whole"), "limited": fitted(limit_train_batches=2)}
    said |= {"accumulated": fitted(accumulate_grad_batches=2), "beyond": fitted(limit_train_batches=4)}
    for step in range(1, 6):
        said[f"from {step}"] = fitted(ckpt_path=OUT / "whole" / f"step={step}.ckpt")
    torch.save(said, OUT / os.environ["RANK"])
