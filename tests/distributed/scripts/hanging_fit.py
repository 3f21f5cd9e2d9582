"""Trains on two processes with a Watchdog; saves are slow, and with ``hangs`` rank 1 does not come to a step."""

import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from core import Module, Trainer
from core.callbacks import ModelCheckpoint, Watchdog
from core.checkpoints import TorchCheckpointIO


class SlowIO(TorchCheckpointIO):
    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        time.sleep(7)
        super().save_checkpoint(checkpoint, path, storage_options)


class Net(Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if "hangs" in sys.argv and self.trainer.global_rank == 1 and batch_idx == 6:
            print(f"dying at {time.monotonic()}", flush=True)
            time.sleep(1000)
        loss: torch.Tensor = self.layer(batch[0]).square().mean()
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main() -> None:
    Trainer(
        accelerator="cpu",
        strategy=sys.argv[1],
        devices=2,
        max_epochs=1,
        checkpoint_io=SlowIO(),
        callbacks=[Watchdog(step=timedelta(seconds=5)), ModelCheckpoint(Path("saved"), every_n_train_steps=4)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(Net(), DataLoader(TensorDataset(torch.randn(20, 4)), batch_size=1))
    print("is through")


if __name__ == "__main__":
    main()
