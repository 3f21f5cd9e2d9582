"""Trains two processes with checkpoints at a URL, from the last one if any: ``trains_to_a_url.py STRATEGY IO URL``.

Each process writes a digest of what it ends with to ``end.RANK``.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from core import Callback, Module, Trainer, seed_everything
from core.callbacks import ModelCheckpoint
from core.checkpoints import latest


class Net(Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.2), nn.Linear(16, 2))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss: torch.Tensor = self.layers(batch[0]).square().mean()
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=0.01)


class Record(Callback):
    def on_train_start(self, trainer: Any, module: Any) -> None:
        Path(f"pid.{trainer.global_rank}").write_text(str(os.getpid()))
        Path(f"start.{trainer.global_rank}").write_text(str(trainer.progress.step))

    def on_train_end(self, trainer: Any, module: Any) -> None:
        digest = hashlib.sha256(torch.get_rng_state().numpy().tobytes())
        for value in module.state_dict().values():
            digest.update(value.numpy().tobytes())
        Path(f"end.{trainer.global_rank}").write_text(f"{trainer.progress.step} {digest.hexdigest()}")


def main() -> None:
    strategy, io, url = sys.argv[1:]
    found = latest(url)
    seed_everything(1)
    trainer = Trainer(
        accelerator="cpu",
        strategy=strategy,
        devices=2,
        max_epochs=1,
        checkpoint_io=io,
        callbacks=[ModelCheckpoint(url, every_n_train_steps=3, monitor="step", mode="max", save_top_k=2), Record()],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    data = TensorDataset(torch.randn(23, 6, generator=torch.Generator().manual_seed(4)))
    trainer.fit(Net(), DataLoader(data, batch_size=1, shuffle=True), ckpt_path="last" if found else None)


if __name__ == "__main__":
    main()
