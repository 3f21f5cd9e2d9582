"""Processes that train, of which some fail: ``causes.py STRATEGY PROCESSES HOW RANKS``, ranks as in ``0,1``.

A comment names the line that fails.
"""

import os
import sys
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from core import Callback, Module, Runtime, Trainer

STRATEGY, PROCESSES, HOW = sys.argv[1], int(sys.argv[2]), sys.argv[3]


def fails(how: str) -> bool:
    return how == HOW and os.environ.get("RANK", "0") in sys.argv[4].split(",")


def make_batch() -> torch.Tensor:
    if fails("script"):
        raise NameError("planted")  # script
    return torch.ones(2, 3)


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        raise ValueError("planted")  # backward


class FailingSGD(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        if fails("optimizer"):
            raise ValueError("planted")  # optimizer
        return super().step(closure)


class Samples(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> torch.Tensor:
        if index > 12 and fails("worker"):
            raise ValueError("planted")  # worker
        return torch.ones(3)


class Net(Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)
        self.other = nn.Linear(3, 1) if HOW == "unused" else None

    def setup(self, stage: str) -> None:
        if fails("setup"):
            raise ValueError("planted")  # setup

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        loss: torch.Tensor = self.layer(batch[0]).mean()
        if batch_idx < 2:
            return loss
        if fails("forward") or fails("collective") or fails("hook"):
            raise ValueError("planted")  # forward, collective, hook
        if fails("two errors"):
            raise ValueError(f"planted in {self.global_rank}")  # two errors
        if fails("shape"):
            loss = self.layer(torch.ones(2, 4)).mean()  # shape
        if fails("exit"):
            sys.exit(3)  # exit
        if fails("interrupt"):
            raise KeyboardInterrupt  # interrupt
        if fails("kill") or fails("crash"):
            os.kill(os.getpid(), 9 if HOW == "kill" else 11)
        if HOW == "collective":
            self.trainer.strategy.barrier()
        if fails("backward"):
            loss = Fails.apply(loss)  # type: ignore[no-untyped-call]
        return loss

    def configure_optimizers(self) -> Any:
        return FailingSGD(self.parameters(), lr=0.1) if HOW == "optimizer" else torch.optim.SGD(self.parameters(), 0.1)


class FailsInHook(Callback):
    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == 3 and fails("callback"):
            raise KeyError("planted")  # callback

    def on_exception(self, trainer: Any, *_: Any) -> None:
        if HOW == "hook":
            trainer.strategy.barrier()


def train(runtime: Runtime) -> None:
    layer = nn.Linear(3, 1)
    layer, optimizer, loader = runtime.prepare(
        layer, torch.optim.SGD(layer.parameters(), 0.1), DataLoader(Samples(), 2, num_workers=2)
    )
    for batch in loader:
        runtime.backward(layer(batch).mean())
        optimizer.step()


def main() -> None:
    batch = make_batch()
    devices = PROCESSES + 1 if fails("devices") else PROCESSES
    if HOW == "worker":
        runtime = Runtime(accelerator="cpu", devices=devices, strategy=STRATEGY)
        runtime.launch(train)
        return
    trainer = Trainer(  # devices
        accelerator="cpu",
        devices=devices,
        strategy=STRATEGY,
        max_epochs=1,
        callbacks=[FailsInHook()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Net(), DataLoader(TensorDataset(batch.repeat(12, 1)), 2))  # unused


if __name__ == "__main__":
    main()
