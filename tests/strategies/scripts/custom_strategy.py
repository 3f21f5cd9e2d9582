"""Strategies of the user's, on two processes; the argument says which, and how they start."""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from core import CheckpointIO, Module, StrategyRegistry, Trainer, seed_everything
from core.accelerators import CPUAccelerator
from core.callbacks import ModelCheckpoint
from core.precisions import MixedPrecision
from core.strategies import DDPStrategy


class Regression(Module):
    """Some trained parameters, and with ``idle`` one that no forward pass uses."""

    def __init__(self, idle: bool = False) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Dropout(0.2), nn.Linear(12, 1))
        self.idle = nn.Parameter(torch.zeros(3)) if idle else None

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        inputs, targets = batch
        return nn.functional.mse_loss(self.model(inputs), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def fit(trainer: Trainer, *, idle: bool = False, **options: Any) -> dict[str, Tensor]:
    """Train from scratch, with the same seed each time; the parameters at the end."""
    seed_everything(3)
    module = Regression(idle)
    inputs = torch.randn(64, 6, generator=torch.Generator().manual_seed(1))
    dataset = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    trainer.fit(module, DataLoader(dataset, batch_size=8, shuffle=True), **options)
    return module.state_dict()


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def trainer(strategy: Any, **options: Any) -> Trainer:
    """A Trainer for two processes."""
    return Trainer(strategy=strategy, devices=2, logger=False, enable_progress_bar=False, **options)


# -- strategies that override configure_ddp ------------------------------------------------------------------------


wrapped: list[nn.Module] = []


class CallingSuperStrategy(DDPStrategy):
    def configure_ddp(self) -> None:
        self.ddp_kwargs["find_unused_parameters"] = True
        super().configure_ddp()
        wrapped.append(self.model)


class BuildingItselfStrategy(DDPStrategy):
    def configure_ddp(self) -> None:
        self.model = DistributedDataParallel(self.model, find_unused_parameters=True, bucket_cap_mb=1)
        wrapped.append(self.model)


class NumberedAccelerator(CPUAccelerator):
    """Gives each process a device with a number, which torch's CPU tensors do not have."""

    def get_parallel_devices(self, devices: Any) -> list[torch.device]:
        return [torch.device("cpu", index) for index, _ in enumerate(super().get_parallel_devices(devices))]


def wrap() -> None:
    """Train with each, and with the strategy that they derive from."""
    plain = fit(trainer("ddp_find_unused_parameters_true", precision="bf16-mixed", max_epochs=2), idle=True)
    for strategy in (CallingSuperStrategy, BuildingItselfStrategy):
        given = strategy(accelerator=CPUAccelerator(), precision_plugin=MixedPrecision("bfloat16"))
        mine = trainer(given, max_epochs=2)
        assert same(fit(mine, idle=True), plain), strategy
        plan = mine.plan
        assert (plan.strategy.name, plan.precision.name, plan.world_size) == (strategy.__name__, "bf16-mixed", 2)
    numbered = trainer(
        BuildingItselfStrategy(), accelerator=NumberedAccelerator(), precision="bf16-mixed", max_epochs=2
    )
    assert same(fit(numbered, idle=True), plain)
    numbered = trainer("ddp", accelerator=NumberedAccelerator(), max_epochs=1)
    fit(numbered)
    # Without the option that both set, the parameter that no forward pass uses would have been an error.
    assert [type(module) for module in wrapped] == [DistributedDataParallel] * 3
    print(f"rank {mine.runtime.process_index} trained with each")


# -- a strategy registered with a checkpoint format ----------------------------------------------------------------


class CustomCheckpointIO(CheckpointIO):
    """One file, written and read by this class alone."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        torch.save(checkpoint, f"{path}.part")
        os.replace(f"{path}.part", path)
        with open("writers", "a") as file:
            file.write(f"{os.environ['RANK']}\n")

    def load_checkpoint(self, path: Any, map_location: Any = None) -> dict[str, Any]:
        checkpoint: dict[str, Any] = torch.load(path, map_location=map_location, weights_only=True)
        return checkpoint

    def remove_checkpoint(self, path: Any) -> None:
        os.remove(path)


def checkpointing(max_epochs: int, start_method: str) -> Trainer:
    """A Trainer with that strategy by name, whose files go where its number of epochs says."""
    StrategyRegistry.register(
        "ddp_custom_checkpoint_io",
        DDPStrategy,
        description="DDP with a checkpoint format of mine",
        checkpoint_io=CustomCheckpointIO(),
        start_method=start_method,
    )
    made = trainer("ddp_custom_checkpoint_io", max_epochs=max_epochs, default_root_dir=f"epochs-{max_epochs}")
    assert (made.plan.checkpoint_io.name, made.plan.launcher) == ("CustomCheckpointIO", start_method)
    return made


def written(by: Trainer) -> str:
    """The newest checkpoint of a Trainer, which is a single file."""
    assert isinstance(by.checkpoint_callback, ModelCheckpoint)
    path: str = by.checkpoint_callback.best_model_path
    assert os.path.isfile(path), path
    return path


def spawn() -> None:
    """Train, and read what a started process wrote."""
    asked = checkpointing(2, "spawn")
    assert same(fit(asked), CustomCheckpointIO().load_checkpoint(written(asked))["state_dict"])
    print("written by a started process")


def resume() -> None:
    """Train halfway, resume, and compare with the whole run."""
    halfway = checkpointing(2, "script")
    fit(halfway)
    whole = fit(checkpointing(4, "script"))
    resumed = checkpointing(4, "script")
    assert same(fit(resumed, ckpt_path=written(halfway)), whole)
    assert resumed.global_step == 16
    print(f"rank {resumed.runtime.process_index} resumed")


if __name__ == "__main__":
    {"wrap": wrap, "spawn": spawn, "resume": resume}[sys.argv[1]]()
