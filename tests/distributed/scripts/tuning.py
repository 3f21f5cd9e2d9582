"""Three processes search learning rate and batch size; process 1 has the least memory. Each leaves what it found.

The strategy and the searches are the arguments.
"""

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from core import Module, Trainer, seed_everything
from core.callbacks import BatchSizeFinder, LearningRateFinder

FINDERS: dict[str, Any] = {
    "size": partial(BatchSizeFinder, mode="binsearch", margin=0.0),
    "rate": partial(LearningRateFinder, min_lr=1e-3, num_training_steps=30),
}


class Limited(Module):
    def __init__(self) -> None:
        super().__init__()
        self.lr, self.batch_size = 0.1, 4
        self.network = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        loss: Tensor = self.network(batch).square().mean()
        if len(batch) > (6 if self.global_rank == 1 else 40):
            raise torch.OutOfMemoryError("out of memory")
        return loss

    def train_dataloader(self) -> Any:
        data: Any = torch.randn(130, 6, generator=torch.Generator().manual_seed(0))
        return DataLoader(data, batch_size=self.batch_size, shuffle=True)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.lr)

    def on_fit_end(self) -> None:
        if not self.trainer.is_trial:
            found = [
                self.lr,
                self.batch_size,
                self.trainer.global_step,
                self.state_dict()["network.0.weight"].sum().item(),
            ]
            (Path(os.environ["OUT"]) / f"found{self.global_rank}.json").write_text(json.dumps(found))


def main() -> None:
    seed_everything(0)
    trainer = Trainer(
        strategy=sys.argv[1],
        devices=3,
        accelerator="cpu",
        max_epochs=1,
        callbacks=[FINDERS[name]() for name in sys.argv[2:]],
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        logger=False,
    )
    module = Limited()
    trainer.fit(module)
    assert module.batch_size == (6 if "size" in sys.argv else 4)
    assert (module.lr != 0.1) == ("rate" in sys.argv)


if __name__ == "__main__":
    main()
