"""A method that needs every process, called by one of them, before, between and after runs that all have.

The arguments: the number of processes, when, which rank calls it, and its name; and what the others call, if anything.
"""

import sys
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from core import Module, Runtime, Trainer


class Linear(Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        loss: Tensor = self.layer(batch).mean()
        return loss

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.log("loss", self.layer(batch).mean())

    test_step = validation_step

    def predict_step(self, batch: Tensor, batch_idx: int) -> Any:
        return self.layer(batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


def main() -> None:
    processes, when, rank, method, others = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5:]
    items: Any = torch.ones(4 * processes, 4)
    module, loader = Linear(), DataLoader(items, batch_size=2)
    quiet: dict[str, Any] = dict.fromkeys(("logger", "enable_progress_bar", "enable_checkpointing"), False)
    trainer = Trainer(accelerator="cpu", devices=processes, strategy="ddp", max_epochs=1, **quiet)
    runtime = Runtime(accelerator="cpu", devices=processes, strategy="ddp")
    calls = {name: getattr(trainer, name) for name in ("fit", "validate", "test", "predict")}
    if when in ("between", "after"):
        trainer.fit(module, loader)
    if trainer.global_rank == rank:
        calls[method](module, loader) if method in calls else getattr(runtime, method)(torch.ones(2))
    elif others:
        calls[others[0]](module, loader)
    if when in ("before", "between"):
        trainer.fit(module, loader)
    print(f"rank {trainer.global_rank} is through", flush=True)


if __name__ == "__main__":
    main()
