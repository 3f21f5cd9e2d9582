"""The batches of validation before training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from core import Callback, Trainer
from core.loggers import Logger

from .regression import Regression, assert_same, dataset, loader, quiet
from .test_resume import Noisy, seed_all


class Records(Callback):
    """What ran in the sanity check, and what could be seen afterwards."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.metrics: dict[str, Any] | None = None

    def on_sanity_check_start(self, trainer: Trainer, module: Any) -> None:
        self.events.append("start")

    def on_sanity_check_end(self, trainer: Trainer, module: Any) -> None:
        self.events.append("end")

    def on_validation_batch_end(
        self, trainer: Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if trainer.sanity_checking:
            assert (trainer.validating, trainer.training, trainer.evaluating) == (False, False, True)
            self.events.append(batch_idx)
        else:
            assert (trainer.validating, trainer.training, trainer.evaluating) == (True, False, True)

    def on_train_start(self, trainer: Trainer, module: Any) -> None:
        assert (trainer.training, trainer.sanity_checking) == (True, False)
        self.events.append("train")
        self.metrics = trainer.callback_metrics


@pytest.mark.parametrize(("steps", "batches"), [(None, 2), (2, 2), (0, 0), (-1, 7), (99, 7)])
def test_how_many_batches(steps: int | None, batches: int) -> None:
    """Two by default, all with -1; before training, and without metrics afterwards."""
    records = Records()
    trainer = quiet(max_epochs=1, num_sanity_val_steps=steps, callbacks=records)
    trainer.fit(Regression(), loader(), loader())
    around = ["start", *range(batches), "end"] if batches else []
    assert records.events == [*around, "train"]
    assert records.metrics == {}


def test_what_it_logs_goes_nowhere() -> None:
    """Neither to loggers nor into the metrics of later validations; the progress of training is untouched."""
    received: list[tuple[str, int]] = []

    class Log:
        def log_metrics(self, metrics: dict[str, float], step: int) -> None:
            received.extend((name, step) for name in metrics)

    trainer = quiet(max_epochs=1, num_sanity_val_steps=1, logger=Log())
    module = Regression()
    trainer.fit(module, loader(), loader())
    assert received == [("error", 6), ("epoch", 6)]
    (error,) = quiet().validate(module, loader())
    assert {name: float(value) for name, value in trainer.callback_metrics.items()} == error


class Writes(Regression):
    """Writes with the logger's own object, as modules that log images do."""

    def on_validation_epoch_end(self) -> None:
        assert self.logger is not None
        self.logger.experiment.add_image("image", torch.zeros(3, 2, 2), self.current_epoch)
        self.logger.log_hyperparams({"width": 2})


@pytest.mark.parametrize("settings", [{"num_sanity_val_steps": 1}, {"fast_dev_run": True}])
def test_a_module_finds_its_logger(settings: dict[str, Any]) -> None:
    """In the sanity check, and with ``fast_dev_run``, where it writes nothing."""
    written: list[str] = []

    class Experiment:
        def add_image(self, name: str, image: Any, step: int) -> None:
            written.append(name)

    class Log(Logger):
        name = "log"

        def open(self) -> Experiment:
            return Experiment()

        def write_metrics(self, values: Any, step: int | None, **options: Any) -> None:
            written.append("metrics")

        def write_hyperparams(self, values: Any) -> None:
            written.append("hyperparameters")

    trainer = quiet(max_epochs=1, logger=Log(), **settings)
    trainer.fit(Writes(), loader(), loader())
    once = ["image", "hyperparameters"]
    assert written == ([] if "fast_dev_run" in settings else [*once, *once, "metrics"])
    assert len(trainer.loggers) == 1


class Draws(Regression):
    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("error", self.loss(batch) + torch.rand(()))


@pytest.mark.parametrize("kind", ["plain", "shuffled", "own generator", "drawing"])
def test_training_is_as_without_it(kind: str) -> None:
    """Also where validation, its loader or its data set draw random numbers, of the loader's own generator too."""
    results = []
    for steps in (0, 2):
        seed_all(3)
        module = Draws()
        held_out: DataLoader[Any] = {
            "plain": lambda: loader(),
            "shuffled": lambda: loader(shuffle=True),
            "own generator": lambda: loader(shuffle=True, generator=torch.Generator().manual_seed(1)),
            "drawing": lambda: DataLoader(Noisy(), 8, shuffle=True),
        }[kind]()
        trainer = quiet(max_epochs=2, num_sanity_val_steps=steps)
        trainer.fit(module, loader(shuffle=True), held_out)
        results.append((module, {name: float(value) for name, value in trainer.callback_metrics.items()}))
    (one, metrics), (other, others) = results
    assert_same(one, other)
    assert metrics == others


def test_a_resumed_run_has_none(tmp_path: Path) -> None:
    """The run that is continued has checked already."""

    class Save(Callback):
        def on_train_epoch_end(self, trainer: Trainer, module: Any) -> None:
            trainer.save_checkpoint(tmp_path / "c")

    quiet(max_epochs=1, callbacks=Save()).fit(Regression(), loader(), loader())
    records = Records()
    trainer = quiet(max_epochs=2, num_sanity_val_steps=2, callbacks=records)
    trainer.fit(Regression(), loader(), loader(), ckpt_path=tmp_path / "c")
    assert records.events == ["train"]


def test_an_error_in_validation_shows_before_training() -> None:
    """That is what it is for."""

    class Wrong(Regression):
        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            raise RuntimeError("a typo")

    trainer = quiet(max_epochs=1, num_sanity_val_steps=2)
    with pytest.raises(RuntimeError, match="a typo"):
        trainer.fit(Wrong(), loader(), DataLoader(dataset(), batch_size=4))
    assert trainer.global_step == 0


class Caches(Regression):
    """Keeps a tensor that its first forward pass has created, as models with positional encodings do."""

    cache: torch.Tensor | None = None

    def loss(self, batch: Any) -> torch.Tensor:
        if self.cache is None:
            self.cache = torch.arange(1.0)
        return super().loss(batch) * (next(self.parameters()).sum() * self.cache).mean()


def test_a_tensor_that_the_module_keeps() -> None:
    """torch's error names a mode that the user has not turned on: the note says where, and what to set."""
    with pytest.raises(RuntimeError, match="nference tensor") as raised:
        quiet(max_epochs=1, num_sanity_val_steps=1).fit(Caches(), loader(), loader())
    assert "Trainer(inference_mode=False)" in raised.value.__notes__[1]
    quiet(max_epochs=1, num_sanity_val_steps=1, inference_mode=False).fit(Caches(), loader(), loader())
