"""Four epochs, checkpointed after each; ``die`` kills this process in epoch 3, ``resume`` goes on from there.

``die-within`` saves again within that epoch, and within an accumulation of two batches, if those are asked for. With
``fail``, process 1 alone raises an error there.
"""

import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from problem import BATCH, dataset, leave, model
from torch import Tensor, nn
from torch.utils.data import DataLoader

from core import Module, Trainer, seed_everything
from core.callbacks import Callback, ModelCheckpoint


class Regression(Module):
    """Draws from every generator there is, so that one that is not restored shows in the parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.model = model()

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        inputs, targets = batch
        noise = random.random() + float(np.random.random())
        return nn.functional.mse_loss(self.model(inputs + noise / 100 + torch.rand_like(inputs) / 100), targets)

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        inputs, targets = batch
        self.log("error", nn.functional.l1_loss(self.model(inputs), targets))

    def configure_optimizers(self) -> dict[str, Any]:
        stepper = torch.optim.AdamW(self.parameters(), lr=3e-3)
        return {"optimizer": stepper, "lr_scheduler": torch.optim.lr_scheduler.StepLR(stepper, 1, 0.7)}


class Total(Callback):
    """Adds up the losses of this process."""

    total = 0.0

    def on_train_batch_end(self, trainer: Trainer, module: Module, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.total += float(outputs)

    def state_dict(self) -> dict[str, Any]:
        return {"totals": torch.tensor([0.0] * 2000 + [self.total], dtype=torch.float64)}  # the last one alone differs

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.total = state_dict["totals"][-1].item()


class Die(Callback):
    def on_train_batch_start(self, trainer: Trainer, module: Module, batch: Any, batch_idx: int) -> None:
        if trainer.current_epoch == 2 and batch_idx == 3:
            os.kill(os.getpid(), signal.SIGKILL)


class Fail(Callback):
    def on_train_batch_start(self, trainer: Trainer, module: Module, batch: Any, batch_idx: int) -> None:
        if trainer.current_epoch == 2 and batch_idx == 3 and trainer.global_rank == 1:
            raise ValueError("planted")


class SaveWithin(Callback):
    def on_train_batch_end(self, trainer: Trainer, module: Module, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.current_epoch == 2 and batch_idx == 2:
            trainer.save_checkpoint(os.path.join(os.environ["OUT"], "checkpoints", "within"))


def main() -> None:
    mode, devices, precision, strategy, accumulate = sys.argv[1:]
    callbacks: dict[str, list[Callback]] = {"die": [Die()], "die-within": [Die(), SaveWithin()], "fail": [Fail()]}
    seed_everything(3 if mode == "resume" else 0)
    module, total = Regression(), Total()
    trainer = Trainer(
        accelerator="cpu",
        strategy=strategy,
        devices=devices,
        precision=precision,
        max_epochs=4,
        callbacks=[
            total,
            *callbacks.get(mode, []),
            ModelCheckpoint(Path(os.environ["OUT"], "checkpoints"), save_top_k=-1, save_on_exception=True),
        ],
        accumulate_grad_batches=int(accumulate),
        enable_progress_bar=False,
    )
    data = dataset()
    loader = DataLoader(data, batch_size=BATCH, shuffle=True, generator=torch.Generator().manual_seed(1))
    trainer.fit(module, loader, DataLoader(data, batch_size=64), ckpt_path="last" if mode == "resume" else None)
    assert trainer.current_epoch == 4
    module.model.register_buffer("total", torch.tensor(total.total))
    leave(module.model, trainer.runtime.process_index)


if __name__ == "__main__":
    main()
