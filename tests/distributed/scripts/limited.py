"""Processes with different numbers of batches validate and stop at the same steps, and resume from a validation."""

import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from core import Callback, Module, Trainer, seed_everything

OUT = Path(os.environ["OUT"])
RANK = int(os.environ["RANK"])
BATCHES = (7, 9, 8)[RANK]


class Linear(Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss: Tensor = (self.layer(batch[0]) + 0.1 * torch.rand(())).square().mean()
        return loss

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("val", self.layer(batch[0]).mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-2, momentum=0.9)


class Sharded(torch.utils.data.DistributedSampler[Any]):
    """A sampler that the user has written, which gives the processes different numbers of items."""

    def __iter__(self) -> Any:
        return iter(range(RANK, RANK + BATCHES))

    def __len__(self) -> int:
        return BATCHES


class Saves(Callback):
    def __init__(self, path: Path | None) -> None:
        self.path, self.at = path, list[tuple[int, bool]]()

    def on_validation_end(self, trainer: Trainer, module: Any) -> None:
        self.at.append((trainer.global_step, trainer.sanity_checking))
        if trainer.global_step == 10 and self.path is not None:
            trainer.save_checkpoint(self.path)
        # One process asks to stop; at the validation all of them do.
        trainer.should_stop = trainer.global_step == 17 and RANK == 2


def fit(seed: int, path: Path | None, ckpt_path: Path | None) -> tuple[Any, list[tuple[int, bool]]]:
    seed_everything(seed + RANK)
    module, saves = Linear(), Saves(path)
    items = TensorDataset(torch.randn(14, 2, generator=torch.Generator().manual_seed(1)))
    trainer = Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=3,
        max_epochs=4,
        val_check_interval=3,
        callbacks=saves,
        enable_progress_bar=False,
        enable_checkpointing=False,
    )
    # Four batches of validation for three processes.
    trainer.fit(
        module, DataLoader(items, sampler=Sharded(items, 3, RANK)), DataLoader(items, batch_size=4), ckpt_path=ckpt_path
    )
    return module, saves.at


if __name__ == "__main__":
    torch.set_num_threads(1)
    whole, at = fit(0, OUT / "c", None)
    resumed, again = fit(5, None, OUT / "c")
    torch.save(
        {"whole": whole.state_dict(), "resumed": resumed.state_dict(), "at": at, "again": again}, OUT / f"{RANK}"
    )
    sys.exit(0)
