"""A checkpoint that a hook has written after some batch continues bit for bit as the run that went on."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, IterableDataset

from core import Callback, Trainer
from core.callbacks import OnExceptionCheckpoint
from core.data import CombinedLoader

from .regression import assert_same, dataset, loader, quiet
from .test_resume import Drawing, Noisy, Stateful, seed_all, seeded_generator

CASES = int(os.environ.get("RESUME_CASES", "30"))


class Logged(Drawing):
    """Logs values of steps and of epochs, by step and at the epoch's end."""

    interval = "step"

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.log("loss", loss, on_step=True, on_epoch=True)
        self.log("largest", loss, on_epoch=True, reduce_fx="max")
        return loss


class SaveAt(Callback):
    """Saves after a batch, counted over all epochs; and notes in which order it saw batches."""

    def __init__(self, path: Path | None = None, at: int = 0) -> None:
        self.path, self.at, self.batches = path, at, 0
        self.begun: list[int] = []

    def on_train_epoch_start(self, trainer: Trainer, module: Any) -> None:
        self.begun.append(trainer.current_epoch)

    def on_train_batch_end(self, trainer: Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.batches += 1
        if self.batches == self.at and self.path is not None:
            trainer.save_checkpoint(self.path)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([dataset()[index] for index in range(45)])


LOADERS: dict[str, Any] = {
    "shuffled": lambda workers: loader(shuffle=True, num_workers=workers),
    "own generator": lambda workers: loader(shuffle=True, generator=seeded_generator(), num_workers=workers),
    "drawing": lambda workers: DataLoader(Noisy(), 8, shuffle=True, num_workers=workers),
    "stream": lambda workers: DataLoader(Stream(), 8),
}


def check(number: int, directory: Path) -> None:
    rng = random.Random(number)
    kind, workers = rng.choice(list(LOADERS)), rng.choice([0, 0, 0, 0, 1])
    settings: dict[str, Any] = {
        "accumulate_grad_batches": rng.choice([1, 1, 2, 3]),
        "limit_train_batches": rng.choice([None, None, 4]),
        "precision": rng.choice(["32-true", "16-mixed", "bf16-mixed"]),
    }
    epochs, per_epoch = 3, settings["limit_train_batches"] or (6 if kind == "stream" else 7)
    at = rng.randrange(1, epochs * per_epoch + 1)

    def run(seed: int, ckpt_path: Path | None, saver: SaveAt) -> tuple[Any, ...]:
        seed_all(seed)
        module, total = Logged(), Stateful()
        trainer = quiet(max_epochs=epochs, callbacks=[total, saver], **settings)
        trainer.fit(module, LOADERS[kind](workers), loader(), ckpt_path=ckpt_path)
        drawn = random.random(), float(np.random.rand()), float(torch.rand(()))
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        return module, total.total, trainer.current_epoch, trainer.global_step, metrics, drawn

    saver, again = SaveAt(directory / f"case{number}", at), SaveAt()
    expected = run(number, None, saver)
    found = run(1000 + number, directory / f"case{number}", again)
    case = (number, kind, workers, settings, at)
    assert found[1:] == expected[1:], case
    assert_same(found[0], expected[0])
    assert again.batches == saver.batches - at, case
    assert again.begun == list(range((at - 1) // per_epoch + 1, epochs)), case


@pytest.mark.parametrize("chunk", range(3))
def test_after_any_batch(chunk: int, tmp_path: Path) -> None:
    """Parameters, callbacks, epoch, step, values of the epoch, generators; the epoch is not begun a second time."""
    for number in range(chunk, CASES, 3):
        check(number, tmp_path)


@pytest.mark.parametrize("how", ["max_steps", "should_stop"])
def test_a_run_that_was_stopped(how: str, tmp_path: Path) -> None:
    """The rest of the epoch is trained on: each item of it once."""
    items: list[int] = []

    class Watch(Callback):
        def on_train_batch_end(self, trainer: Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            items.extend(batch[1].flatten().tolist())
            trainer.should_stop = how == "should_stop" and trainer.global_step == 9

    class Save(Callback):
        def on_train_epoch_end(self, trainer: Trainer, module: Any) -> None:
            trainer.save_checkpoint(tmp_path / "c")

    first = quiet(max_steps=9 if how == "max_steps" else 100, callbacks=[Watch(), Save()])
    first.fit(Logged(), loader(shuffle=True))
    assert (first.current_epoch, first.global_step) == (2, 9)
    second = quiet(max_epochs=2, callbacks=[Watch()])
    second.fit(Logged(), loader(shuffle=True), ckpt_path=tmp_path / "c")
    assert (second.current_epoch, second.global_step) == (2, 14)
    assert sorted(items) == sorted(2 * torch.cat([batch[1].flatten() for batch in loader()]).tolist())


class Validated(Drawing):
    """Logs a mean of validation, and the parameters follow it: what is missing of a pass shows in both."""

    make_scheduler = staticmethod(lambda optimizer: ReduceLROnPlateau(optimizer, patience=0, factor=0.5))

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        inputs, targets = batch
        self.log("val", self.loss((inputs + torch.rand(()), targets)), add_dataloader_idx=False)

    def configure_optimizers(self) -> Any:
        configured = super().configure_optimizers()
        configured["lr_scheduler"]["monitor"] = "val"
        return configured


class InValidation(Callback):
    """Saves in a hook of the second validation, or fails there; and notes the values of each validation."""

    def __init__(self, path: Path | None = None, where: str = "", at: int = 0) -> None:
        self.path, self.where, self.at = path, where, at
        self.values: dict[tuple[int, int], float] = {}

    def _act(self, trainer: Trainer, where: str, at: int = 0) -> None:
        is_due = trainer.sanity_checking or (len(self.values) == 1 and trainer.num_sanity_val_steps == 0)
        if self.path is None or not is_due or (where, at) != (self.where.removeprefix("error "), self.at):
            return
        if self.where.startswith("error"):
            raise ValueError("bad sample")
        trainer.save_checkpoint(self.path)

    def on_validation_start(self, trainer: Trainer, module: Any) -> None:
        self._act(trainer, "start")

    def on_validation_batch_end(
        self, trainer: Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._act(trainer, "batch", batch_idx)

    def on_validation_epoch_end(self, trainer: Trainer, module: Any) -> None:
        self._act(trainer, "epoch end")

    def on_sanity_check_end(self, trainer: Trainer, module: Any) -> None:
        self._act(trainer, "sanity end")

    def on_validation_end(self, trainer: Trainer, module: Any) -> None:
        if not trainer.sanity_checking:
            self.values[trainer.current_epoch, trainer.global_step] = float(trainer.callback_metrics["val"])


VALIDATIONS: dict[str, Any] = {
    "drawing": lambda workers: DataLoader(Noisy(), 8, shuffle=True, num_workers=workers),
    "several": lambda workers: [loader(num_workers=workers), DataLoader(Noisy(), 8, num_workers=workers)],
    "combined": lambda workers: CombinedLoader([loader(num_workers=workers), loader(4)], mode="sequential"),
    "stream": lambda workers: DataLoader(Stream(), 8),
}


@pytest.mark.parametrize(
    ("kind", "where", "at", "workers"),
    [
        ("drawing", "batch", 2, 0),
        ("drawing", "batch", 6, 0),
        ("drawing", "batch", 2, 2),
        ("drawing", "start", 0, 0),
        ("drawing", "epoch end", 0, 0),
        ("drawing", "error batch", 3, 0),
        ("several", "batch", 2, 0),
        ("combined", "batch", 2, 0),
        ("stream", "batch", 2, 0),
        ("drawing", "batch", 1, -1),
        ("drawing", "sanity end", 0, -1),
    ],
)
def test_a_checkpoint_that_is_saved_while_a_validation_runs(
    kind: str, where: str, at: int, workers: int, tmp_path: Path
) -> None:
    """The resumed run validates all batches again, and goes on as the run that was not interrupted."""
    sanity = workers < 0  # saved in the sanity check
    settings: dict[str, Any] = {"max_epochs": 2, "val_check_interval": 3, "num_sanity_val_steps": 3 if sanity else 0}
    workers = max(workers, 0)

    def run(seed: int, saver: InValidation, ckpt_path: Path | None = None, *more: Callback) -> Validated:
        seed_all(seed)
        module = Validated()
        trainer = quiet(callbacks=[saver, *more], enable_checkpointing=bool(more), **settings)
        trainer.fit(module, loader(shuffle=True), VALIDATIONS[kind](workers), ckpt_path=ckpt_path)
        return module

    whole, path = InValidation(), tmp_path / "c"
    expected = run(1, whole)
    if where.startswith("error"):
        with pytest.raises(ValueError, match="bad sample"):
            run(1, InValidation(path, where, at), None, OnExceptionCheckpoint(tmp_path, "c"))
        (path,) = tmp_path.glob("c*")
    else:
        run(1, InValidation(path, where, at))
    again = InValidation()
    found = run(2, again, path)
    first = 0 if sanity else 1
    assert list(again.values.items()) == list(whole.values.items())[first:]
    assert_same(found, expected)
