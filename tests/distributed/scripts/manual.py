"""The networks of tests/trainer/gan.py on several processes; arguments: processes, strategy, epochs, mode, options."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from problem import leave

from core import Module, Trainer
from core.callbacks import Callback
from core.errors import ConfigurationError

sys.path.insert(0, str(Path(__file__).parents[2]))
from trainer import gan


class Uneven(gan.GAN):
    """Which parameters a batch uses differs between the processes; some are used by none."""

    def __init__(self) -> None:
        super().__init__()
        self.extra = torch.nn.ModuleList(torch.nn.Linear(4, 1) for _ in range(3))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        rank = self.trainer.runtime.process_index
        optimizer.zero_grad()
        self.manual_backward(self.extra[min(rank, 1)](batch[0]).square().mean())
        self.manual_backward(self.extra[0](batch[0]).mean())
        optimizer.step()
        assert self.extra[2].weight.grad is None

    def on_train_epoch_end(self) -> None:
        """There is no scheduler."""


class Unsynchronized(gan.GAN):
    """Accumulates gradients within a step; the processes exchange them once."""

    def training_step(self, batch: Any, batch_idx: int) -> None:
        first, second = self.optimizers()
        del second
        rows, noise = batch
        half = len(rows) // 2
        with first.toggle_model(sync_grad=False):
            loss = gan.judge(self.discriminator, self.generator(noise[:half]), True)
            self.manual_backward(loss * half / len(rows))
        if self.trainer.world_size > 1:
            with pytest.raises(ConfigurationError, match=r"Set sync_grad=True for the last manual_backward"):
                first.step()
        with first.toggle_model():
            loss = gan.judge(self.discriminator, self.generator(noise[half:]), True)
            self.manual_backward(loss * (len(rows) - half) / len(rows))
        first.step()
        first.zero_grad()


class Across(gan.GAN):
    """Accumulates gradients over two batches; the processes exchange them in the second."""

    def training_step(self, batch: Any, batch_idx: int) -> None:
        first, _ = self.optimizers()
        steps = batch_idx % 2 == 1
        with first.toggle_model(sync_grad=steps):
            self.manual_backward(gan.judge(self.discriminator, self.generator(batch[1]), True) / 2)
        if steps:
            first.step()
            first.zero_grad()


class Die(Callback):
    def on_train_batch_end(self, trainer: Trainer, module: Module, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.current_epoch == 1 and batch_idx == 2:
            trainer.save_checkpoint(os.path.join(os.environ["OUT"], "checkpoints", "within"))
        if trainer.current_epoch == 1 and batch_idx == 3:
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    processes, strategy, epochs, mode, batch, options = sys.argv[1:]
    given = json.loads(options)
    default = Across if given.pop("across", False) else gan.GAN
    kind: Any = {"uneven": Uneven, "unsynchronized": Unsynchronized}.get(mode, default)
    module = kind(**given)
    trainer = Trainer(
        accelerator="cpu",
        strategy=strategy,
        devices=int(processes),
        max_epochs=int(epochs),
        enable_progress_bar=False,
        callbacks=[Die()] if mode == "die" else [],
        default_root_dir=os.environ["OUT"],
    )
    rows = gan.real_rows(int(batch), 34 if mode == "rows" else gan.ROWS)
    trainer.fit(module, rows, ckpt_path="last" if mode == "resume" else None)
    leave(module, trainer.runtime.process_index)


if __name__ == "__main__":
    main()
