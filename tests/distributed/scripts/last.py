"""Two processes resume from the last checkpoint, each with its own directory, as on machines without shared files."""

import os
from pathlib import Path
from typing import Any

from problem import BATCH, dataset, model
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.data import DataLoader

from core import Module, Trainer
from core.callbacks import ModelCheckpoint
from core.errors import CheckpointError

OUT = Path(os.environ["OUT"])


class Regression(Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = model()

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return nn.functional.mse_loss(self.model(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        return SGD(self.parameters(), lr=0.01)


def fit(directory: Path, ckpt_path: str | None = None) -> Trainer:
    trainer = Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=2,
        max_epochs=2,
        callbacks=[ModelCheckpoint(directory)],
        enable_progress_bar=False,
    )
    trainer.fit(Regression(), DataLoader(dataset(), batch_size=BATCH), ckpt_path=ckpt_path)
    return trainer


if __name__ == "__main__":
    try:
        fit(OUT / "empty", "last")
        raised = ""
    except CheckpointError as error:
        raised = str(error)
    rank = int(os.environ["RANK"])
    if "there is no committed checkpoint" in raised:
        print(f"{rank}: no committed checkpoint\n", end="", flush=True)
    fit(OUT / "written")
    resumed = fit(OUT / "written" if rank == 0 else OUT / "elsewhere", "last")
    print(f"{rank}: resumed at {resumed.current_epoch}\n", end="", flush=True)
