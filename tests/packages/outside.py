"""A user's program, whose types are checked against the installed package by ``test_types_outside.py``."""

from typing import Any, assert_type

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import core
from core import Callback, DataModule, Module, Plan, Runtime, Trainer
from core.accelerators import Accelerator
from core.callbacks import EarlyStopping, ModelCheckpoint
from core.strategies import DDPStrategy


class Net(Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        loss: Tensor = self.layer(batch).sum()
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Numbers(DataModule):
    def train_dataloader(self) -> list[Tensor]:
        return [torch.ones(2, 3)]


class Said(Callback):
    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        assert_type(trainer.global_step, Any)


class Typed(EarlyStopping):
    def on_train_end(self, trainer: Trainer, pl_module: Net) -> None:
        assert_type(trainer.global_step, int)
        assert_type(pl_module.trainer, Trainer)


def with_trainer() -> None:
    trainer = Trainer(
        accelerator="cpu",
        strategy=DDPStrategy(find_unused_parameters=True),
        devices=2,
        precision="bf16-mixed",
        callbacks=[Said(), EarlyStopping("loss"), ModelCheckpoint(monitor="loss")],
    )
    trainer.fit(Net(), datamodule=Numbers())
    assert_type(Net.load_from_checkpoint("last.ckpt", map_location="cpu"), Net)
    assert_type(Numbers.load_from_checkpoint("last.ckpt"), Numbers)
    assert_type(trainer.global_step, int)
    assert_type(trainer.plan, Plan)
    assert_type(trainer.accelerator, Accelerator)


def with_runtime() -> None:
    runtime = Runtime(devices=1)
    model = runtime.prepare(nn.Linear(3, 1))
    assert_type(model, nn.Linear)
    runtime.backward(model(torch.ones(2, 3)).sum())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.ones(2, 3)), batch_size=2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    assert_type(runtime.prepare(model, optimizer), tuple[nn.Linear, torch.optim.SGD])
    model, optimizer, loader, schedule = runtime.prepare(model, optimizer, loader, schedule)
    assert_type(runtime.unwrap_model(model), nn.Linear)
    assert_type(runtime.gather(torch.ones(2)), Tensor)
    assert_type(runtime.gather_for_metrics((torch.ones(2), torch.ones(2))), tuple[Tensor, Tensor])
    assert_type(runtime.reduce(1, "mean"), float)
    assert_type(runtime.reduce(torch.ones(2)), Tensor)
    assert_type(runtime.gather({"n": torch.ones(2), "m": None}), Any)
    assert_type(runtime.pad_across_processes(torch.ones(2)), Tensor)
    assert_type(runtime.num_processes, int)
    assert_type(runtime.device, torch.device)
    assert_type(core.__version__, str)
