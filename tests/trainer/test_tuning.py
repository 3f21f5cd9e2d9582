"""Learning rates and batch sizes that are searched before a fit."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Sampler

from core import DataModule, Trainer, Tuner, find_batch_size, find_learning_rate, seed_everything
from core.callbacks import BatchSizeFinder, Callback, LearningRateFinder
from core.data import CombinedLoader
from core.errors import ConfigurationError, CoreError

from .regression import Regression, assert_same, dataset, loader, quiet

RANGE: dict[str, Any] = {"min_lr": 1e-4, "max_lr": 10.0, "num_training_steps": 30}


class Rated(Regression):
    """With a learning rate, and a scheduler that is made from it."""

    def __init__(self, lr: float = 0.05, batch_size: int = 8) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.network[2] = nn.BatchNorm1d(16)
        self.lr, self.batch_size, self.sizes = lr, batch_size, list[int]()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.sizes.append(len(batch[0]))
        return self.loss(batch)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)]


def by_hand(module: Any, batches: list[Any], rates: list[float], threshold: float = 4.0) -> list[float]:
    """The smoothed losses of a plain loop."""
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0, momentum=0.9)
    losses: list[float] = []
    mean = 0.0
    for step, rate in enumerate(rates):
        optimizer.param_groups[0]["lr"] = rate
        loss = module.loss(batches[step % len(batches)])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = 0.98 * mean + 0.02 * loss.item()
        losses.append(mean / (1 - 0.98 ** (step + 1)))
        if step > 1 and losses[-1] > threshold * min(losses[:-1]):
            break
    return losses


@pytest.mark.parametrize("mode", ["exponential", "linear"])
def test_losses_are_those_of_a_plain_loop(mode: str) -> None:
    """Learning rates from the first to the last; the suggestion is where the loss falls fastest."""
    module = Rated()
    plain = copy.deepcopy(module).train()
    last = 0.2 if mode == "linear" else 10.0
    found = find_learning_rate(quiet(), module, loader(), mode=mode, **{**RANGE, "max_lr": last})
    if mode == "linear":
        rates = torch.linspace(1e-4, last, 30, dtype=torch.float64).tolist()
    else:
        rates = torch.logspace(-4, 1, 30, dtype=torch.float64).tolist()
    losses = by_hand(plain, list(loader()), rates)
    assert found.results["lr"] == pytest.approx(rates[: len(losses)])
    assert found.results["loss"] == pytest.approx(losses, rel=1e-4)
    places = np.log10(rates) if mode == "exponential" else np.array(rates)
    steepest = np.gradient(np.array(losses[2:-1]), places[2 : len(losses) - 1]).argmin() + 2
    assert found.suggestion(skip_begin=2) == pytest.approx(rates[int(steepest)])
    assert module.lr == found.suggestion()


def test_a_step_that_skips_its_batch_is_not_counted() -> None:
    """Its learning rate has no loss, and the others are as if it had not been there."""

    class Skips(Rated):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return None if batch_idx % 3 == 1 else super().training_step(batch, batch_idx)

    module = Skips()
    plain = copy.deepcopy(module).train()
    found = find_learning_rate(quiet(), module, loader(), **{**RANGE, "num_training_steps": 10})
    assert len(found.results["lr"]) >= 5
    kept = [batch for index, batch in enumerate(loader()) if index % 3 != 1]
    assert found.results["loss"] == pytest.approx(by_hand(plain, kept, found.results["lr"]), rel=1e-4)


@pytest.mark.parametrize("source", ["loader", "generator", "sampler", "combined", "module", "datamodule"])
def test_nothing_else_changes(source: str) -> None:
    """A fit with both finders, whose results are not used, ends bit for bit like one without."""

    class Data(DataModule):
        batch_size = 8

        def train_dataloader(self) -> Any:
            return DataLoader(dataset(), batch_size=self.batch_size, shuffle=True)

    class OwnLoader(Rated):
        def train_dataloader(self) -> Any:
            return DataLoader(dataset(), batch_size=self.batch_size, shuffle=True)

    class OwnOrder(Sampler[int]):
        def __init__(self) -> None:
            self.random = Random(4)

        def __len__(self) -> int:
            return len(dataset())

        def __iter__(self) -> Iterator[int]:
            return iter(self.random.sample(range(len(self)), len(self)))

    class OfParts(Rated):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return super().training_step(batch["part"], batch_idx)

    class KeepsSize(BatchSizeFinder):
        def _search(self, trial: Any, owners: Any) -> int:
            assert super()._search(trial, owners) == 64
            return 8

    def run(callbacks: list[Callback]) -> Any:
        seed_everything(3)
        module: Any = OwnLoader() if source == "module" else Rated()
        if source == "sampler":
            given: Any = DataLoader(dataset(), batch_size=8, sampler=OwnOrder())
        else:
            generator = None if source == "loader" else torch.Generator().manual_seed(4)
            given = DataLoader(dataset(), batch_size=8, shuffle=True, generator=generator)
        if source == "combined":
            module, given = OfParts(), CombinedLoader({"part": given})
        trainer = quiet(max_epochs=2, callbacks=callbacks)
        if source == "module":
            trainer.fit(module)
        else:
            trainer.fit(module, Data() if source == "datamodule" else given)
        return module, trainer, torch.rand(3)

    finders: list[Callback] = [LearningRateFinder(update_attr=False, **RANGE)]
    if source in ("module", "datamodule"):
        finders.append(KeepsSize())
    plain, expected, drawn = run([])
    tuned, trainer, drawn_too = run(finders)
    assert_same(plain, tuned)
    assert torch.equal(drawn, drawn_too)
    assert (tuned.lr, tuned.sizes) == (0.05, plain.sizes)
    assert trainer.global_step == expected.global_step
    assert trainer.callbacks == finders


def test_fit_uses_what_was_found() -> None:
    """Optimizer and scheduler are made from the new learning rate; hyperparameters have it too."""

    class Rates(Callback):
        def __init__(self) -> None:
            self.seen: list[float] = []

        def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
            self.seen.append(trainer.optimizers[0].param_groups[0]["lr"])

    module, rates, finder = Rated(), Rates(), LearningRateFinder(**RANGE)
    trainer = quiet(max_epochs=2, callbacks=[rates, finder])
    trainer.fit(module, loader())
    assert finder.optimal_lr is not None
    best = finder.optimal_lr.suggestion()
    assert best is not None
    assert rates.seen == [best, best / 2]
    assert module.lr == module.hparams.lr == best
    finder.optimal_lr = None
    quiet(fast_dev_run=True, callbacks=[finder]).fit(module, loader())
    assert finder.optimal_lr is None


class Limited(Rated):
    """Runs out of memory with more than ``most`` rows."""

    most = 20

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if len(batch[0]) > self.most:
            raise torch.OutOfMemoryError("out of memory")
        return super().training_step(batch, batch_idx)

    def train_dataloader(self) -> Any:
        return DataLoader(dataset(), batch_size=self.batch_size)


@pytest.mark.parametrize(
    ("options", "most", "expected"),
    [
        ({}, 20, 16),
        ({"mode": "binsearch", "margin": 0}, 20, 20),
        ({"mode": "binsearch", "margin": 0}, 2, 2),
        ({"mode": "binsearch"}, 20, 19),
        ({"mode": "binsearch", "margin": 0.9}, 2, 1),
        ({"max_val": 10}, 20, 10),
        ({"mode": "binsearch", "margin": 0.0, "max_val": 10}, 20, 10),
        ({"max_val": 20}, 20, 20),
        ({"max_val": 2}, 20, 2),
        ({"mode": "power", "init_val": 3}, 20, 12),
        ({"max_trials": 2}, 20, 4),
        ({}, 1000, 64),
    ],
    ids=str,
)
def test_batch_sizes(options: dict[str, Any], most: int, expected: int) -> None:
    """The largest that fits; no larger than the data set needs."""
    module = Limited()
    module.most = most
    assert find_batch_size(quiet(), module, **options) == expected
    assert (module.batch_size, module.hparams.batch_size, module.sizes) == (expected, expected, [])


def test_a_resumed_fit_sets_what_was_found(tmp_path: Path) -> None:
    """Attributes and hyperparameters, before the loaders are made."""

    def run(epochs: int, ckpt_path: Path | None) -> tuple[Trainer, Limited]:
        module = Limited()
        sizes = BatchSizeFinder()
        trainer = quiet(max_epochs=epochs, callbacks=[sizes, LearningRateFinder(**RANGE)])
        trainer.fit(module, ckpt_path=ckpt_path)
        assert module.batch_size == module.hparams.batch_size == sizes.optimal_batch_size == module.sizes[0] == 16
        assert module.lr == module.hparams.lr != Rated().lr
        return trainer, module

    trainer, first = run(1, None)
    trainer.save_checkpoint(tmp_path / "end.ckpt")
    _, resumed = run(2, tmp_path / "end.ckpt")
    assert resumed.lr == first.lr


def test_errors() -> None:
    """What cannot be searched is refused by name, and other errors of a step are raised; the attribute is as before."""
    module = Limited()
    module.most = 1
    with pytest.raises(ConfigurationError, match="batch_size=2 does not fit"):
        find_batch_size(quiet(), module)
    assert module.batch_size == 8

    class Failing(Limited):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            raise KeyError("mine")

    failing = Failing()
    with pytest.raises(KeyError, match="mine"):
        find_batch_size(quiet(), failing)
    assert failing.batch_size == 8
    with pytest.raises(ConfigurationError, match="a loader that was passed to fit keeps its batch size"):
        quiet(callbacks=BatchSizeFinder()).fit(Rated(), loader())
    with pytest.raises(ConfigurationError, match="no attribute or hyperparameter 'lr', 'learning_rate'"):
        find_learning_rate(quiet(), Regression(), loader())
    for finder, options, message in (
        (LearningRateFinder, {"min_lr": 1.0, "max_lr": 0.1}, "min_lr=1.0, max_lr=0.1"),
        (LearningRateFinder, {"mode": "cubic"}, "mode='cubic'"),
        (LearningRateFinder, {"num_training_steps": 1}, "num_training_steps=1"),
        (BatchSizeFinder, {"mode": "linear"}, "mode='linear'"),
        (BatchSizeFinder, {"init_val": 0}, "init_val=0"),
        (BatchSizeFinder, {"init_val": 9, "max_val": 8}, "init_val=9: is above max_val=8"),
        (BatchSizeFinder, {"max_val": 0}, "max_val=0"),
        (BatchSizeFinder, {"mode": "binsearch", "margin": 1.0}, "margin=1.0: must be a number from 0 to below 1"),
        (BatchSizeFinder, {"mode": "binsearch", "margin": True}, "margin=True: must be a number"),
        (BatchSizeFinder, {"margin": 0.1}, "margin=0.1: has no effect with mode='power'"),
    ):
        with pytest.raises(CoreError, match=message):
            finder(**options)


def test_lightning_s_tuner() -> None:
    """The same searches under Lightning's names."""
    module = Limited()
    tuner = Tuner(quiet())
    assert tuner.scale_batch_size(module) == 16
    assert tuner.scale_batch_size(module, mode="binsearch", margin=0.25, max_val=16) == 12
    options = {name: value for name, value in RANGE.items() if name != "num_training_steps"}
    found = tuner.lr_find(module, num_training=RANGE["num_training_steps"], early_stop_threshold=None, **options)
    assert module.lr == found.suggestion()
    assert len(found.results["lr"]) == RANGE["num_training_steps"]
    for search, refused, remedy in (
        (tuner.lr_find, {"val_dataloaders": loader()}, "The search only trains"),
        (tuner.lr_find, {"num_trainings": 3}, "Did you mean 'num_training'"),
        (tuner.lr_find, {"method": "validate"}, "only training is searched"),
        (tuner.scale_batch_size, {"train_dataloaders": loader()}, "A loader that was passed keeps its batch size"),
        (tuner.scale_batch_size, {"max_vals": 64}, "Did you mean 'max_val'"),
    ):
        with pytest.raises(CoreError, match=f"Tuner.*{remedy}"):
            search(module, **refused)
