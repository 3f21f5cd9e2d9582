"""Trains with checkpoints that are written in the background on a slow disk: ``writes_slowly.py STRATEGY DEVICES IO``.

Each weight is the number of steps that were made, so a checkpoint tells whether it is of one moment.
"""

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from core import Callback, Module, Trainer
from core.callbacks import ModelCheckpoint
from core.checkpoints import AsyncCheckpointIO, CheckpointIO, SafetensorsCheckpointIO, ShardedCheckpointIO
from core.strategies import process_group

OUT = Path(os.environ["OUT"])
SYNC_SECONDS = 0.4
"""Of each file and directory; a save has four or more."""
INNER: dict[str, type[CheckpointIO] | None] = {
    "torch": None,
    "sharded": ShardedCheckpointIO,
    "safetensors": SafetensorsCheckpointIO,
}
sync = os.fsync
process_group.LEAVE_SECONDS = 1.0  # type: ignore[attr-defined]  # less than a save takes: the others wait for that all the same


def sync_slowly(fd: Any) -> None:
    """Say that a thread writes the second checkpoint, and take long for it."""
    if threading.current_thread().name == "checkpoint writer" and (OUT / "saved" / "step=2.ckpt").exists():
        (OUT / "writes").touch()
    time.sleep(SYNC_SECONDS)
    sync(fd)


os.fsync = sync_slowly  # here, as spawned processes import this file


class Counts(Module):
    """The gradient of each weight is -1 in each step."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(7, 3)
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        time.sleep(0.02)
        return -sum((parameter.sum() for parameter in self.parameters()), torch.zeros(()))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1.0)


class Tells(Callback):
    """Where each process is."""

    def on_train_start(self, trainer: Any, module: Any) -> None:
        (OUT / f"pid.{trainer.global_rank}").write_text(str(os.getpid()))


def main() -> None:
    strategy, devices, name = sys.argv[1:]
    inner = INNER[name]
    # Persistent: Python 3.11 can hang in a fork while another thread, such as the writer, starts or ends.
    loader = DataLoader(TensorDataset(torch.zeros(11, 2)), batch_size=2, num_workers=2, persistent_workers=True)
    Trainer(
        accelerator="cpu",
        strategy=strategy,
        devices=int(devices),
        max_epochs=500,
        checkpoint_io=AsyncCheckpointIO(inner() if inner is not None else None),
        callbacks=[ModelCheckpoint(OUT / "saved", "{step}", every_n_train_steps=2, save_top_k=-1), Tells()],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(Counts(), loader)


if __name__ == "__main__":
    main()
