"""Whom `overhead.py` measures: one small training run, written for each front end as its own documents say.

Every function below takes a :class:`Task`, trains the same network on the same batches, and returns the network; the
parameters it ends with prove that it did the same work.
"""

from __future__ import annotations

import importlib.util
import itertools
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from core import Module, Runtime, Trainer

__all__ = ["CLOCKS", "Contender", "Task", "Times", "contenders"]

CLOCKS = ("wall", "cpu")
FEATURES = 32
BATCH_SIZE = 16
Batch = tuple[Tensor, Tensor]
Times = dict[str, float]
"""Microseconds a step, by clock."""


class StampedBatches(Dataset[Batch]):
    """Batches, already collated, that note the time when the first one is read: at the start of each epoch.

    The clocks are read here since this is the one part of the loop that no front end replaces.
    """

    def __init__(self, steps: int) -> None:
        generator = torch.Generator().manual_seed(1)
        inputs = torch.randn(steps, BATCH_SIZE, FEATURES, generator=generator)
        targets = inputs.sum(2, keepdim=True).tanh()
        self.batches: list[Batch] = list(zip(inputs, targets, strict=True))
        self.stamps: list[tuple[int, int]] = []
        """By epoch: the clocks in the order of :data:`CLOCKS`, in nanoseconds."""

    def __getitem__(self, position: int) -> Batch:
        if position == 0:
            self.stamps.append((time.perf_counter_ns(), time.process_time_ns()))
        return self.batches[position]

    def __len__(self) -> int:
        return len(self.batches)


class Task:
    """One training run: ``epochs`` epochs of ``steps`` steps each."""

    def __init__(self, epochs: int, steps: int) -> None:
        self.epochs, self.steps = epochs, steps
        self.data = StampedBatches(steps)

    def network(self) -> nn.Module:
        """The same network each time."""
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.ReLU(), nn.Linear(FEATURES, 1))

    def loader(self) -> DataLoader[Any]:
        """The same batches each time, in the same order."""
        return DataLoader(self.data, batch_size=None)

    def times(self) -> list[Times]:
        """Of each epoch but the last, up to the start of the next, so with all that happens at its end."""
        return [
            {clock: (end - start) / 1000 / self.steps for clock, start, end in zip(CLOCKS, began, ended, strict=True)}
            for began, ended in itertools.pairwise(self.data.stamps)
        ]


@dataclass(frozen=True)
class Contender:
    """A way to train.

    Attributes:
        name: As the table calls it.
        train: Does the whole run.
        baseline: The hand-written loop that it is compared with.
        bar: Microseconds a step that it may take beyond the baseline; ``None`` for no promise.
    """

    name: str
    train: Callable[[Task], nn.Module]
    baseline: Callable[[Task], nn.Module]
    bar: float | None = None


def contenders() -> list[Contender]:
    """All that can run here; the first is the plain loop itself, and shows how exact the figures are."""
    found = [
        Contender("plain loop", plain, plain),
        Contender("torch-hal Runtime", runtime, plain, bar=5),
        Contender("torch-hal Trainer, bare", trainer_bare, plain, bar=25),
        Contender("torch-hal Trainer, all three", trainer_all_three, plain, bar=80),
        Contender("torch-hal Runtime, bf16-mixed", runtime_mixed, plain_autocast),
    ]
    if importlib.util.find_spec("lightning") is not None:
        found += [
            Contender("Lightning Fabric", fabric, plain),
            Contender("Lightning Trainer, bare", lightning_bare, plain),
            Contender("Lightning Trainer, all three", lightning_all_three, plain),
        ]
    if importlib.util.find_spec("accelerate") is not None:
        found.append(Contender("Accelerate", accelerate, plain))
    return found


def sgd(network: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of every contender."""
    return torch.optim.SGD(network.parameters(), lr=0.01)


# -- by hand -------------------------------------------------------------------------------------------------------


def plain(task: Task) -> nn.Module:
    """The loop that torch's own tutorial teaches."""
    model, criterion, loader = task.network(), nn.MSELoss(), task.loader()
    optimizer = sgd(model)
    for _ in range(task.epochs):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = criterion(model(inputs), targets)
            loss.backward()
            optimizer.step()
    return model


def plain_autocast(task: Task) -> nn.Module:
    """The same, with the forward pass under autocast and the loss in float32."""
    model, criterion, loader = task.network(), nn.MSELoss(), task.loader()
    optimizer = sgd(model)
    for _ in range(task.epochs):
        for inputs, targets in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                outputs = model(inputs)
            loss = criterion(outputs.float(), targets)
            loss.backward()
            optimizer.step()
    return model


# -- torch-hal -----------------------------------------------------------------------------------------------------


def runtime(task: Task, precision: str = "32-true") -> nn.Module:
    """One's own loop on the Runtime."""
    network, criterion = task.network(), nn.MSELoss()
    runtime = Runtime(accelerator="cpu", devices=1, precision=precision)
    model, optimizer, loader = runtime.prepare(network, sgd(network), task.loader())
    for _ in range(task.epochs):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = criterion(model(inputs), targets)
            runtime.backward(loss)
            optimizer.step()
    runtime.teardown()
    return network


def runtime_mixed(task: Task) -> nn.Module:
    """The same in mixed precision."""
    return runtime(task, "bf16-mixed")


class Regression(Module):
    """The network as a torch-hal Module."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.criterion = nn.MSELoss()

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        inputs, targets = batch
        loss: Tensor = self.criterion(self.network(inputs), targets)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return sgd(self.network)


class LoggedRegression(Regression):
    """The same, with its loss in the progress bar."""

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.log("loss", loss, prog_bar=True)
        return loss


def trainer_bare(task: Task) -> nn.Module:
    """The Trainer with everything off that can be."""
    module = Regression(task.network())
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=task.epochs,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(module, task.loader())
    return module.network


def trainer_all_three(task: Task) -> nn.Module:
    """The Trainer with progress bar, a checkpoint each epoch, and the loss logged each step."""
    module = LoggedRegression(task.network())
    with tempfile.TemporaryDirectory() as directory:
        trainer = Trainer(
            accelerator="cpu",
            devices=1,
            max_epochs=task.epochs,
            enable_checkpointing=True,
            enable_progress_bar=True,
            default_root_dir=directory,
        )
        trainer.fit(module, task.loader())
    return module.network


# -- others --------------------------------------------------------------------------------------------------------


def accelerate(task: Task) -> nn.Module:
    """One's own loop on Accelerate."""
    from accelerate import Accelerator

    network, criterion = task.network(), nn.MSELoss()
    accelerator = Accelerator(cpu=True)
    model, optimizer, loader = accelerator.prepare(network, sgd(network), task.loader())
    for _ in range(task.epochs):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = criterion(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
    return network


def fabric(task: Task) -> nn.Module:
    """One's own loop on Fabric."""
    from lightning.fabric import Fabric

    network, criterion = task.network(), nn.MSELoss()
    fabric = Fabric(accelerator="cpu", devices=1)
    model, optimizer = fabric.setup(network, sgd(network))
    loader = fabric.setup_dataloaders(task.loader())
    for _ in range(task.epochs):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = criterion(model(inputs), targets)
            fabric.backward(loss)
            optimizer.step()
    return network


def lightning_bare(task: Task) -> nn.Module:
    """Lightning's Trainer in its own mode for measuring overhead."""
    from lightning.pytorch import Trainer

    module = lightning_module(task, logged=False)
    trainer = Trainer(accelerator="cpu", devices=1, max_epochs=task.epochs, barebones=True)
    trainer.fit(module, task.loader())
    network: nn.Module = module.network
    return network


def lightning_all_three(task: Task) -> nn.Module:
    """Lightning's Trainer with the same three; without a logger, which torch-hal has none of by default."""
    from lightning.pytorch import Trainer

    module = lightning_module(task, logged=True)
    with tempfile.TemporaryDirectory() as directory:
        trainer = Trainer(
            accelerator="cpu",
            devices=1,
            max_epochs=task.epochs,
            logger=False,
            enable_model_summary=False,
            enable_checkpointing=True,
            enable_progress_bar=True,
            default_root_dir=directory,
        )
        trainer.fit(module, task.loader())
    network: nn.Module = module.network
    return network


def lightning_module(task: Task, logged: bool) -> Any:
    """The network as a LightningModule."""
    from lightning.pytorch import LightningModule

    class LightningRegression(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.network = task.network()
            self.criterion = nn.MSELoss()

        def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
            inputs, targets = batch
            loss: Tensor = self.criterion(self.network(inputs), targets)
            if logged:
                self.log("loss", loss, prog_bar=True)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return sgd(self.network)

    return LightningRegression()
