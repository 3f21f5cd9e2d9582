"""How loaders are created, divided and waited for: reload_dataloaders_every_n_epochs, use_distributed_sampler."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from core import Callback, DataModule, Module, Trainer
from core.errors import ConfigurationError, WrongTypeError
from core.trainer import fit_warnings
from core.trainer.loop import epoch as epoch_module

from .regression import Regression, assert_same, dataset, loader, quiet


class Growing(DataModule):
    """Creates a longer loader of training in each epoch that it is asked in, as a curriculum does."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []

    def _create(self, kind: str, **options: Any) -> Any:
        assert self.trainer is not None
        epoch = self.trainer.current_epoch
        self.asked.append((kind, epoch))
        data = torch.utils.data.Subset(loader().dataset, range(min(8 * (epoch // 2 * 2 + 1), 50)))
        return DataLoader(data, 4, **options)

    def train_dataloader(self) -> Any:
        return self._create("train", shuffle=True)

    def val_dataloader(self) -> Any:
        return self._create("val")


class Counting(Regression):
    """Counts the batches of each epoch, and of its validation."""

    def __init__(self) -> None:
        super().__init__()
        self.counted: list[tuple[float, list[float]]] = []

    def on_train_epoch_end(self) -> None:
        trainer: Any = self.trainer
        self.counted.append((trainer.num_training_batches, trainer.num_val_batches))


def test_loaders_are_created_again_every_so_many_epochs() -> None:
    """For training and validation alike, and read from then on."""
    data, module = Growing(), Counting()
    quiet(max_epochs=5, reload_dataloaders_every_n_epochs=2).fit(module, datamodule=data)
    assert data.asked == [(kind, epoch) for epoch in (0, 2, 4) for kind in ("train", "val")]
    assert module.counted == [(2, [2]), (2, [2]), (6, [6]), (6, [6]), (10, [10])]


def test_validation_that_is_rare_catches_up() -> None:
    """Its loader is created again in the next epoch that validates."""
    data = Growing()
    quiet(max_epochs=8, reload_dataloaders_every_n_epochs=3, check_val_every_n_epoch=2).fit(
        Regression(), datamodule=data
    )
    assert [epoch for kind, epoch in data.asked if kind == "val"] == [0, 3, 7]
    assert [epoch for kind, epoch in data.asked if kind == "train"] == [0, 3, 6]


def test_by_default_loaders_are_created_once() -> None:
    """And only what a method creates is created again."""
    data = Growing()
    quiet(max_epochs=3).fit(Regression(), datamodule=data)
    assert data.asked == [("train", 0), ("val", 0)]


@pytest.mark.parametrize("step", [6, 12, 16, 22])
def test_a_resumed_run_has_the_loader_of_its_epoch(step: int, tmp_path: Path) -> None:
    """Within an epoch, and at the start of one that creates its loaders: bit for bit as without interruption."""

    class Slow(Regression):
        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    class Moving(Growing):
        def _create(self, kind: str, **options: Any) -> Any:
            assert self.trainer is not None
            start = self.trainer.current_epoch * 6
            self.asked.append((kind, start))
            return DataLoader(torch.utils.data.Subset(loader().dataset, range(start, start + 24)), 4, **options)

    def run(path: Path | None, **settings: Any) -> tuple[Slow, Trainer]:
        torch.manual_seed(0)
        module = Slow()
        trainer = quiet(reload_dataloaders_every_n_epochs=2, **settings)
        trainer.fit(module, datamodule=Moving(), ckpt_path=path)
        return module, trainer

    _, first = run(None, max_epochs=5, max_steps=step)
    first.save_checkpoint(tmp_path / "half")
    whole, _ = run(None, max_epochs=5)
    resumed, _ = run(tmp_path / "half", max_epochs=5)
    assert_same(whole, resumed)
    assert all(parameter.isfinite().all() for parameter in whole.parameters())


def test_a_resumed_run_creates_the_loader_of_validation_where_it_was_due(tmp_path: Path) -> None:
    """Not before: a method that draws what it validates on draws the same as without interruption."""

    class Draws(Growing):
        def val_dataloader(self) -> Any:
            return DataLoader(torch.utils.data.Subset(loader().dataset, torch.randperm(50)[:8].tolist()), 4)

    class Save(Callback):
        def on_train_batch_end(self, trainer: Trainer, *rest: Any) -> None:
            if trainer.global_step == 3:
                trainer.save_checkpoint(tmp_path / "three")

    def run(path: Path | None) -> dict[str, Any]:
        torch.manual_seed(0 if path is None else 1)
        trainer = quiet(reload_dataloaders_every_n_epochs=1, max_epochs=2, callbacks=Save())
        trainer.fit(Regression(), datamodule=Draws(), ckpt_path=path)
        return trainer.callback_metrics

    assert run(None) == run(tmp_path / "three")


def test_loaders_that_cannot_be_created_again() -> None:
    """The setting would have no effect."""
    trainer = quiet(max_epochs=1, reload_dataloaders_every_n_epochs=1)
    with pytest.raises(ConfigurationError, match="reload_dataloaders_every_n_epochs=1: loaders that are passed"):
        trainer.fit(Regression(), loader(), loader())
    for wrong in (-1, None, True):
        with pytest.raises(ConfigurationError, match=f"reload_dataloaders_every_n_epochs={wrong}: must be"):
            quiet(reload_dataloaders_every_n_epochs=wrong)


class Identity(Module):
    """Predicts what it gets."""

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        return batch[0]


class OwnPart(DataModule):
    """Gives each process its own numbers: two, three and four of them."""

    def predict_dataloader(self) -> Any:
        assert self.trainer is not None
        rank = self.trainer.runtime.process_index
        return DataLoader(TensorDataset(torch.arange(rank + 2) + 10 * rank))


@pytest.mark.slow
@pytest.mark.parametrize("divides", [True, False])
def test_processes_divide_loaders_only_where_they_shall(divides: bool) -> None:
    """Without use_distributed_sampler each process reads all of its own loader."""
    trainer = quiet(devices=3, strategy="ddp_fork", use_distributed_sampler=divides)
    if divides:
        got = trainer.predict(Identity(), DataLoader(TensorDataset(torch.arange(5))))
        assert torch.cat(got).tolist() == [0, 1, 2, 3, 4]
    else:
        got = trainer.predict(Identity(), datamodule=OwnPart())
        assert torch.cat(got).sort().values.tolist() == [0, 1, 10, 11, 12, 20, 21, 22, 23]


def test_use_distributed_sampler_is_checked() -> None:
    """It is True or False."""
    with pytest.raises(WrongTypeError, match="use_distributed_sampler=None: must be True or False"):
        quiet(use_distributed_sampler=None)


class Clock:
    """Seconds that pass only where ``passed`` is called."""

    def __init__(self) -> None:
        self.now = 0.0
        self.asked = 0

    def monotonic(self) -> float:
        self.asked += 1
        return self.now

    def passed(self, seconds: float) -> None:
        self.now += seconds


class Timed(Dataset[Any]):
    """Each item takes ``seconds`` of the clock."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self.clock, self.seconds = clock, seconds

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> Any:
        self.clock.passed(self.seconds)
        return dataset()[index]


class Iterated:
    """The same as an iterable that is no DataLoader."""

    def __init__(self, data: Timed) -> None:
        self.data = data

    def __iter__(self) -> Iterator[Any]:
        return (self.data[number] for number in range(len(self.data)))


class WithWorkers(Iterated):
    num_workers = 4


def train_timed(clock: Clock, patch: pytest.MonkeyPatch, loading: float, step: float, kind: Any = DataLoader) -> None:
    """Two epochs of 30 batches, whose first steps take long."""
    patch.setattr(epoch_module, "time", clock)

    class Steps(Regression):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            clock.passed(step + (100 if batch_idx == 0 else 0))
            return super().training_step(batch, batch_idx)

    quiet(max_epochs=2).fit(Steps(), kind(Timed(clock, loading)))


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (DataLoader, "num_workers=0: set num_workers=4 (4 core(s) for 1 process(es)), so that workers make batches"),
        (Iterated, "quicker, such as by storing what it computes, or read the data in a DataLoader with num_workers="),
        (WithWorkers, "Make what the loader does for a batch quicker, such as by storing what it computes"),
    ],
)
def test_a_fit_that_waits_for_its_batches(
    kind: Any, said: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said once, with the measured times and what to set; the long first step of an epoch does not count."""
    monkeypatch.setattr(fit_warnings, "usable_cores", lambda: 4)
    train_timed(Clock(), monkeypatch, 2.0, 1.0, kind)
    (text,) = [record.message for record in caplog.records if "have waited" in record.message]
    assert text.startswith("fit: 10 steps have waited 20 of 30 seconds for their batches. ")
    assert said in text


@pytest.mark.parametrize(("loading", "step"), [(1.0, 2.0), (0.1, 0.06), (0.0, 0.0)])
def test_a_fit_that_waits_less_or_is_short(
    loading: float, step: float, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is said where steps take most of the time, nor of less than ten seconds."""
    train_timed(Clock(), monkeypatch, loading, step)
    assert "steps have waited" not in caplog.text


def test_waits_are_measured_until_it_is_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Afterwards no step asks for the time."""
    clock = Clock()
    train_timed(clock, monkeypatch, 1.0, 2.0)
    assert clock.asked <= 3 * 13
