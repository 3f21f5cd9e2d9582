"""Processes with different numbers of batches validate and stop at the same steps, and resume from a validation."""

import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from core import Callback, Module, Trainer, seed_everything
from core.callbacks import Timer

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


class Stops(Callback):
    """In the fourth of seven steps of the first epoch: one process asks to stop, or each has decided it for all."""

    def __init__(self, by_all: bool) -> None:
        self.by_all = by_all

    def on_train_batch_end(self, trainer: Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == 4 and self.by_all:
            trainer.should_stop = trainer.progress.all_stop = True
        elif trainer.global_step == 4 and RANK == 1:
            trainer.should_stop = True


def steps_until_stopped(by_all: bool, **settings: Any) -> int:
    trainer = Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=3,
        max_epochs=3,
        callbacks=[Stops(by_all), Timer("00:01:00:00")],
        enable_progress_bar=False,
        enable_checkpointing=False,
        **settings,
    )
    trainer.fit(Linear(), DataLoader(TensorDataset(torch.ones(42, 2)), batch_size=2))
    return trainer.global_step


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
    stopped = [
        steps_until_stopped(False, log_every_n_steps=3),
        steps_until_stopped(False, log_every_n_steps=3, logger=False),
        steps_until_stopped(False),
        steps_until_stopped(True),
    ]
    found = {"whole": whole.state_dict(), "resumed": resumed.state_dict(), "at": at, "again": again}
    torch.save({**found, "stopped": stopped}, OUT / f"{RANK}")
    sys.exit(0)
