"""Methods that are assigned to an object instead of defined in its class, and those that are removed with ``None``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from core import Callback, DataModule, Trainer
from core.errors import ConfigurationError

from .regression import Regression, loader


def trainer(**options: Any) -> Trainer:
    """One epoch on one process."""
    return Trainer(accelerator="cpu", max_epochs=1, logger=False, enable_progress_bar=False, **options)


def test_hooks_assigned_to_an_object_are_called(tmp_path: Path) -> None:
    """Of a module and of a callback, and they are given what a method is given after ``self``."""
    calls: list[tuple[str, int]] = []
    module, callback = Regression(), Callback()
    module.on_train_batch_end = lambda outputs, batch, batch_idx: calls.append(("module", batch_idx))  # type: ignore[method-assign]
    callback.on_train_batch_start = lambda trainer, module, batch, idx: calls.append(("callback", idx))  # type: ignore[assignment, method-assign]
    trainer(callbacks=[callback], default_root_dir=tmp_path, limit_train_batches=2).fit(module, loader())
    assert calls == [("callback", 0), ("module", 0), ("callback", 1), ("module", 1)]


def test_a_step_assigned_to_an_object_is_used(tmp_path: Path) -> None:
    """``validation_step`` of the object replaces that of its class."""
    module, seen = Regression(), []
    module.validation_step = lambda batch, batch_idx: seen.append(batch_idx)  # type: ignore[method-assign]
    trainer(default_root_dir=tmp_path, limit_val_batches=2, num_sanity_val_steps=0).fit(module, loader(), loader())
    assert seen == [0, 1]


@pytest.mark.parametrize("passed", [True, False])
def test_no_validation_step_means_no_validation(tmp_path: Path, passed: bool) -> None:
    """Where ``validation_step`` is ``None``, loaders for validation are not read, wherever they come from."""

    class Data(DataModule):
        def train_dataloader(self) -> Any:
            return loader()

        def val_dataloader(self) -> Any:
            raise AssertionError("is not called")

    module = Regression()
    module.validation_step = None  # type: ignore[assignment, method-assign]
    run = trainer(default_root_dir=tmp_path)
    if passed:
        run.fit(module, loader(), loader())
    else:
        run.fit(module, datamodule=Data())
    assert run.global_step > 0


@pytest.mark.parametrize("name", ["on_train_epoch_end", "val_dataloader", "optimizer_step", "lr_scheduler_step"])
def test_what_is_removed_is_not_called(tmp_path: Path, name: str) -> None:
    """A method that a subclass sets to ``None`` is as if no class defined it."""

    class Defined(Regression):
        def on_train_epoch_end(self) -> None:
            raise AssertionError("is not called")

        def val_dataloader(self) -> Any:
            raise AssertionError("is not called")

        def optimizer_step(self, *args: Any) -> None:
            raise AssertionError("is not called")

        def lr_scheduler_step(self, *args: Any) -> None:
            raise AssertionError("is not called")

        def configure_optimizers(self) -> Any:
            optimizer = super().configure_optimizers()
            return [optimizer], [torch.optim.lr_scheduler.ConstantLR(optimizer)]

    names = ("on_train_epoch_end", "val_dataloader", "optimizer_step", "lr_scheduler_step")
    removed = type("Removed", (Defined,), dict.fromkeys(names))
    run = trainer(default_root_dir=tmp_path)
    run.fit(removed(), loader())
    assert run.global_step > 0
    kept = type("Kept", (Defined,), dict.fromkeys(one for one in names if one != name))
    with pytest.raises(AssertionError, match="is not called"):
        trainer(default_root_dir=tmp_path).fit(kept(), loader())


def test_a_removed_training_step_is_a_missing_one(tmp_path: Path) -> None:
    """It is refused as such."""
    module = Regression()
    module.training_step = None  # type: ignore[assignment, method-assign]
    with pytest.raises(ConfigurationError, match="does not define 'training_step'"):
        trainer(default_root_dir=tmp_path).fit(module, loader())
