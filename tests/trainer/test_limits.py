"""How much is trained and evaluated: limits, fast_dev_run, overfit_batches, least epochs and steps."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from core import Callback, Trainer
from core.callbacks import ModelCheckpoint
from core.errors import ConfigurationError

from .regression import Regression, dataset, loader, quiet


class Counts(Callback):
    """How many batches of each stage there were, and which items training had."""

    def __init__(self) -> None:
        self.batches = dict.fromkeys(("train", "validation", "test", "predict"), 0)
        self.items: list[list[float]] = []

    def on_train_batch_end(self, trainer: Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.batches["train"] += 1
        self.items.append(batch[1].flatten().tolist())

    def on_validation_batch_end(
        self, trainer: Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self.batches["validation"] += 1

    def on_test_batch_end(
        self, trainer: Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self.batches["test"] += 1

    def on_predict_batch_end(
        self, trainer: Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self.batches["predict"] += 1


@pytest.mark.parametrize(
    ("limit", "batches"), [(None, 7), (1.0, 7), (1, 1), (0.5, 3), (0.99, 6), (99, 7), (0, 0), (0.0, 0)]
)
def test_limits_as_numbers_and_fractions(limit: Any, batches: int) -> None:
    """An integer is a number of batches, a float a fraction of all, rounded down; 1 is one and 1.0 is all."""
    counts = Counts()
    limits = {f"limit_{kind}_batches": limit for kind in ("train", "val", "test", "predict")}
    trainer = quiet(max_epochs=2, callbacks=counts, **limits)
    trainer.fit(Regression(), loader(), loader())
    trainer.test(Regression(), loader())
    trainer.predict(Regression(), loader())
    once = {"test": batches, "predict": batches}
    assert counts.batches == {"train": 2 * batches, "validation": 2 * batches, **once}
    assert trainer.global_step == 2 * batches


@pytest.mark.parametrize("stage", ["fit", "validate", "test", "predict"])
@pytest.mark.parametrize(("limit", "said"), [(0.1, "less than one of 7 batches"), (0.5, "the loader has no length")])
def test_fractions_that_mean_nothing(stage: str, limit: float, said: str) -> None:
    """Less than a batch, and a part of a stream without length, are errors that name the argument."""
    kind = {"fit": "train", "validate": "val"}.get(stage, stage)
    batches = loader() if limit == 0.1 else (batch for batch in loader())
    with pytest.raises(ConfigurationError, match=f"limit_{kind}_batches={limit}: {said}.*as an integer"):
        getattr(quiet(max_epochs=1, **{f"limit_{kind}_batches": limit}), stage)(Regression(), batches)


@pytest.mark.parametrize("kind", ["train", "val", "test", "predict"])
def test_nothing_is_loaded_for_a_limit_of_zero(kind: str) -> None:
    """The loader is not even created, and the stage's hooks are not called."""
    called: list[str] = []

    class Loads(Regression):
        def note(self, name: str) -> Any:
            called.append(name)
            return loader()

        def train_dataloader(self) -> Any:
            return self.note("train")

        def val_dataloader(self) -> Any:
            return self.note("val")

        def test_dataloader(self) -> Any:
            return self.note("test")

        def predict_dataloader(self) -> Any:
            return self.note("predict")

    class Starts(Callback):
        def on_train_start(self, trainer: Trainer, module: Any) -> None:
            called.append("train started")

        def on_test_start(self, trainer: Trainer, module: Any) -> None:
            called.append("test started")

    limits: dict[str, Any] = {f"limit_{kind}_batches": 0}
    trainer = quiet(max_epochs=1, callbacks=Starts(), num_sanity_val_steps=2, **limits)
    module = Loads()
    trainer.fit(module)
    trainer.test(module)
    trainer.predict(module)
    expected = ["train", "val", "train started", "test", "test started", "predict"]
    assert called == [name for name in expected if not name.startswith(kind)]


@pytest.mark.parametrize(("given", "batches"), [(True, 1), (1, 1), (3, 3)])
def test_fast_dev_run(given: Any, batches: int, tmp_path: Path) -> None:
    """So many batches of each stage and one epoch, no loggers, no checkpoints, whatever else was asked for."""
    received: list[Any] = []

    class Logger:
        def log_metrics(self, metrics: dict[str, float], step: int) -> None:
            received.append(metrics)

    class Logs(Regression):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            self.log("loss", loss)
            return loss

    counts = Counts()
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        fast_dev_run=given,
        min_epochs=3,
        max_epochs=5,
        min_steps=30,
        max_steps=40,
        limit_val_batches=0.5,
        val_check_interval=2,
        check_val_every_n_epoch=3,
        num_sanity_val_steps=2,
        logger=Logger(),
        log_every_n_steps=1,
        callbacks=[counts, ModelCheckpoint(tmp_path)],
        enable_progress_bar=False,
    )
    trainer.fit(Logs(), loader(), loader())
    trainer.test(Logs(), loader())
    trainer.predict(Logs(), loader())
    assert counts.batches == dict.fromkeys(counts.batches, batches)
    assert (trainer.max_epochs, trainer.max_steps, trainer.current_epoch) == (1, batches, 1)
    assert trainer.fast_dev_run == given
    assert received == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("given", "batches"), [(2, 2), (0.5, 3)])
def test_overfit_batches(given: Any, batches: int) -> None:
    """The same batches in each epoch, the first ones of the data set although the loader shuffles; as many validate."""
    counts = Counts()
    trainer = quiet(max_epochs=3, overfit_batches=given, callbacks=counts)
    trainer.fit(Regression(), loader(shuffle=True), loader(shuffle=True))
    first = [batch[1].flatten().tolist() for batch in loader()][:batches]
    assert counts.items == 3 * first
    assert counts.batches["validation"] == 3 * batches


@pytest.mark.parametrize("name", ["limit_train_batches", "overfit_batches"])
@pytest.mark.parametrize("several", [False, True])
def test_a_fraction_of_too_few_batches(name: str, several: bool) -> None:
    """The error names the argument that was given."""
    loaders = [loader(), loader()] if several else loader()
    with pytest.raises(ConfigurationError, match=rf"^{name}=0.1: less than one of 7 batches"):
        quiet(max_epochs=1, **{name: 0.1}).fit(Regression(), loaders)


class StopsAt(Callback):
    """Asks to stop after some step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer: Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == self.step:
            trainer.should_stop = True


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ({}, 2),
        ({"min_steps": 5}, 7),  # and so an epoch, as in Lightning
        ({"min_steps": 5, "min_epochs": 0}, 5),
        ({"min_epochs": 2}, 14),
        ({"min_epochs": 1, "min_steps": 9}, 9),
    ],
)
def test_least_epochs_and_steps(settings: dict[str, Any], steps: int) -> None:
    """A request to stop waits until both are reached."""
    trainer = quiet(**{"max_epochs": 4, **settings}, callbacks=StopsAt(2))
    trainer.fit(Regression(), loader())
    assert trainer.global_step == steps


def test_no_limit_is_minus_one_or_none() -> None:
    """Both arguments take both; and ``max_epochs`` is 1000 only if nothing else ends the fit."""
    for given, found in (
        ({}, (1000, -1)),
        ({"max_epochs": -1}, (-1, -1)),
        ({"max_steps": -1}, (1000, -1)),
        ({"max_steps": None}, (1000, -1)),
        ({"max_steps": 5}, (-1, 5)),
        ({"max_epochs": None, "max_steps": 5}, (-1, 5)),
    ):
        settings: dict[str, Any] = dict(given)
        trainer = quiet(**settings)
        assert (trainer.max_epochs, trainer.max_steps) == found
    trainer = quiet(max_epochs=-1, callbacks=StopsAt(9))
    trainer.fit(Regression(), loader())
    assert trainer.global_step == 9


def test_numbers_of_batches_that_hooks_see() -> None:
    """In training they are those of the limit; the last batch is known as such, also of a stream."""
    seen: list[tuple[float, bool]] = []

    class Looks(Callback):
        def on_train_batch_end(self, trainer: Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            seen.append((trainer.num_training_batches, trainer.is_last_batch))

    def stream() -> Iterator[Any]:
        yield from loader()

    quiet(max_epochs=1, limit_train_batches=0.5, callbacks=Looks()).fit(Regression(), loader())
    assert seen == [(3, False), (3, False), (3, True)]
    seen.clear()
    quiet(max_epochs=1, callbacks=Looks()).fit(Regression(), DataLoader(list(loader()), batch_size=None))  # type: ignore[arg-type]
    assert seen == [(7, False)] * 6 + [(7, True)]
    seen.clear()
    quiet(max_epochs=1, callbacks=Looks()).fit(Regression(), stream())
    assert seen == [(math.inf, False)] * 6 + [(math.inf, True)]


def test_the_order_of_a_batch_sampler_is_the_users() -> None:
    """``overfit_batches`` turns off torch's own shuffling, and not what the user has written."""
    sampler = [[5, 6], [1, 2]]
    counts = Counts()
    quiet(max_epochs=2, overfit_batches=1.0, callbacks=counts).fit(
        Regression(), DataLoader(dataset(), batch_sampler=sampler)
    )
    targets = dataset().tensors[1].flatten()
    assert counts.items == 2 * [targets[torch.tensor(indices)].tolist() for indices in sampler]
