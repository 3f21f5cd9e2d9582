"""When a fit validates, and that a run resumed from a checkpoint of a validation goes on after it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from core import Callback, Trainer
from core.callbacks import agreement
from core.data import CombinedLoader
from core.errors import ConfigurationError

from .regression import Regression, assert_same, loader, quiet
from .test_resume import Drawing, seed_all


class Notes(Callback):
    """After how many training batches, over all epochs, there was a validation."""

    def __init__(self) -> None:
        self.trained, self.at = 0, list[int]()

    def on_train_batch_end(self, trainer: Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.trained += 1

    def on_validation_end(self, trainer: Trainer, module: Any) -> None:
        self.at.append(self.trained)


# Two epochs of seven batches; what Lightning 2.6 does.
CASES: list[tuple[dict[str, Any], list[int]]] = [
    ({}, [7, 14]),
    ({"val_check_interval": 1.0}, [7, 14]),
    ({"val_check_interval": 0.5}, [3, 6, 10, 13]),
    ({"val_check_interval": 0.25}, list(range(1, 15))),
    ({"val_check_interval": 1}, list(range(1, 15))),
    ({"val_check_interval": 3}, [3, 6, 10, 13]),
    ({"val_check_interval": 7}, [7, 14]),
    ({"val_check_interval": 3, "check_val_every_n_epoch": 2}, [10, 13]),
    ({"val_check_interval": 3, "check_val_every_n_epoch": None}, [3, 6, 9, 12]),
    ({"val_check_interval": 10, "check_val_every_n_epoch": None}, [10]),
    ({"val_check_interval": 7, "check_val_every_n_epoch": None}, [7, 14]),
    ({"val_check_interval": 3, "limit_train_batches": 4}, [3, 7]),
    ({"val_check_interval": 3, "accumulate_grad_batches": 2}, [3, 6, 10, 13]),
    ({"val_check_interval": 3, "max_steps": 4}, [3]),
    ({"val_check_interval": 3, "max_steps": 6}, [3, 6]),
    ({"limit_val_batches": 0}, []),
]


# The same, where a batch takes a second, and a validation a minute.
TIMES: list[tuple[dict[str, Any], list[int]]] = [
    ({"val_check_interval": timedelta(seconds=3)}, [3, 6, 9, 12]),
    ({"val_check_interval": "00:00:00:05"}, [5, 10]),
    ({"val_check_interval": {"seconds": 7}}, [7, 14]),
    ({"val_check_interval": {"hours": 1}}, []),
    ({"val_check_interval": {"seconds": 3}, "check_val_every_n_epoch": None}, [3, 6, 9, 12]),
    ({"val_check_interval": {"seconds": 3}, "check_val_every_n_epoch": 2}, [8, 11, 14]),
    ({"val_check_interval": {"seconds": 3}, "max_steps": 8}, [3, 6]),
    ({"val_check_interval": {"seconds": 3}, "accumulate_grad_batches": 2}, [3, 6, 9, 12]),
    ({"val_check_interval": {"seconds": 3}, "num_sanity_val_steps": 1}, [0, 3, 6, 9, 12]),
    ({"val_check_interval": {"seconds": 3}, "fast_dev_run": 4}, [4]),
]


@pytest.mark.parametrize(("settings", "expected"), TIMES)
def test_times(settings: dict[str, Any], expected: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """From the end of a validation to the batch at which the time is over."""
    now = [100.0]
    monkeypatch.setattr(agreement, "time", SimpleNamespace(monotonic=lambda: now[0]))

    class Takes(Notes):
        def on_train_batch_end(self, *args: Any) -> None:
            super().on_train_batch_end(*args)
            now[0] += 1

        def on_validation_end(self, *args: Any) -> None:
            super().on_validation_end(*args)
            now[0] += 60

    notes = Takes()
    quiet(**{"max_epochs": 2, **settings}, callbacks=notes).fit(Regression(), loader(), loader())
    assert notes.at == expected


@pytest.mark.parametrize("interval", ["1:00", {"fortnights": 1}, timedelta(days=-1)])
def test_what_is_no_time(interval: Any) -> None:
    """It is named."""
    with pytest.raises(ConfigurationError, match=r"val_check_interval[=:]"):
        quiet(val_check_interval=interval)


@pytest.mark.parametrize(("settings", "expected"), CASES)
def test_intervals(settings: dict[str, Any], expected: list[int]) -> None:
    """A number of batches, a fraction of an epoch, or batches over all epochs."""
    notes = Notes()
    quiet(**{"max_epochs": 2, **settings}, callbacks=notes).fit(Regression(), loader(), loader())
    assert notes.at == expected


def stream() -> Iterator[Any]:
    yield from loader()


@pytest.mark.parametrize(("interval", "expected"), [(3, [3, 6]), (7, [7]), (1.0, [7])])
def test_intervals_in_a_stream(interval: Any, expected: list[int]) -> None:
    """Without a length, batches are counted as they come; the end is known when it is there."""
    notes = Notes()
    quiet(max_epochs=1, val_check_interval=interval, callbacks=notes).fit(Regression(), stream(), loader())
    assert notes.at == expected
    with pytest.raises(ConfigurationError, match=r"val_check_interval=0\.5: the training loader has no length"):
        quiet(max_epochs=1, val_check_interval=0.5).fit(Regression(), stream(), loader())


def test_an_interval_that_is_never_reached() -> None:
    """An error, as validation would never run."""
    with pytest.raises(ConfigurationError, match="val_check_interval=8: an epoch has only 7 batches"):
        quiet(max_epochs=1, val_check_interval=8).fit(Regression(), loader(), loader())
    quiet(max_epochs=1, val_check_interval=8).fit(Regression(), loader())  # there is no validation


def test_an_interval_that_is_not_reached(caplog: pytest.LogCaptureFixture) -> None:
    """A warning: before a fit whose length is known, and after the first epoch of a stream."""
    whole: dict[str, Any] = {"check_val_every_n_epoch": None}
    for interval, count in ((14, 0), (15, 1)):
        quiet(max_epochs=2, val_check_interval=interval, **whole).fit(Regression(), loader(), loader())
        assert caplog.text.count("val_check_interval=15, and max_epochs=2 has 14 batches: nothing is valid") == count
    settings: list[dict[str, Any]] = [
        {"val_check_interval": 7},
        whole,
        {"limit_val_batches": 0},
        {"limit_train_batches": 9},
    ]
    for number, given in enumerate(settings):
        quiet(**{"max_epochs": 1, "val_check_interval": 8, **given}).fit(Regression(), stream(), loader())
        assert caplog.text.count("val_check_interval=8, and epoch 0 had only 7 batches") == number // 3


def test_a_stop_that_validation_asks_for() -> None:
    """It takes effect at once, in the middle of an epoch."""

    class Stops(Notes):
        def on_validation_end(self, trainer: Trainer, module: Any) -> None:
            super().on_validation_end(trainer, module)
            trainer.should_stop = len(self.at) == 2

    notes = Stops()
    trainer = quiet(max_epochs=3, val_check_interval=3, callbacks=notes)
    trainer.fit(Regression(), loader(), loader())
    assert (notes.trained, notes.at, trainer.current_epoch) == (6, [3, 6], 1)


class Validates(Drawing):
    """Draws random numbers in validation too."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("error", self.loss(batch) + torch.rand(()))


class SavesAt(Notes):
    """Saves in the hook called ``hook``, when it is called for the n-th time."""

    def __init__(self, hook: str = "", number: int = 0, path: Path | None = None) -> None:
        super().__init__()
        self.number, self.path, self.calls = number, path, 0
        self.ends: list[dict[str, float]] = []
        if hook:
            self.hook = hook

    def saves(self, name: str, trainer: Trainer) -> None:
        if name == self.__dict__.get("hook"):
            self.calls += 1
            if self.calls == self.number:
                trainer.save_checkpoint(str(self.path))

    def on_validation_start(self, trainer: Trainer, module: Any) -> None:
        self.saves("on_validation_start", trainer)

    def on_validation_end(self, trainer: Trainer, module: Any) -> None:
        super().on_validation_end(trainer, module)
        self.saves("on_validation_end", trainer)

    def on_train_epoch_end(self, trainer: Trainer, module: Any) -> None:
        self.ends.append({name: float(value) for name, value in trainer.callback_metrics.items()})
        self.saves("on_train_epoch_end", trainer)


@pytest.mark.parametrize("hook", ["on_validation_start", "on_validation_end", "on_train_epoch_end"])
@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize(
    "settings",
    [
        {"val_check_interval": 3},
        {"val_check_interval": 1.0},
        {"val_check_interval": 4, "check_val_every_n_epoch": None, "accumulate_grad_batches": 3},
    ],
)
def test_a_checkpoint_of_a_validation_resumes_exactly(
    settings: dict[str, Any], number: int, hook: str, tmp_path: Path
) -> None:
    """Bit for bit; no validation and no end of an epoch is missing or run a second time."""

    def run(seed: int, notes: SavesAt, ckpt_path: Path | None) -> tuple[Any, dict[str, float]]:
        seed_all(seed)
        module = Validates()
        trainer = quiet(max_epochs=3, callbacks=notes, **settings)
        trainer.fit(module, loader(shuffle=True), loader(), ckpt_path=ckpt_path)
        return module, {name: float(value) for name, value in trainer.callback_metrics.items()}

    first, second = SavesAt(hook, number, tmp_path / "c"), SavesAt()
    expected, metrics = run(1, first, None)
    start = 7 * number if hook == "on_train_epoch_end" else first.at[number - 1]
    second.trained = start
    found, resumed = run(2, second, tmp_path / "c")
    assert_same(found, expected)
    assert resumed == metrics
    assert second.at == [at for at in first.at if at > start or (hook == "on_validation_start" and at == start)]
    assert second.ends == first.ends[len(first.ends) - len(second.ends) :]
    past = number if hook == "on_train_epoch_end" else (start - 1) // 7
    assert len(second.ends) == 3 - past


def test_values_of_training_steps_during_a_validation(tmp_path: Path) -> None:
    """They are those of the newest step; a value that validation logs under the same name is newer."""

    class Logs(Regression):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            self.log("loss", loss, prog_bar=True)
            self.log("both", -1.0)
            self.newest = float(loss.detach())
            return loss

        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("both", 2.0)

    class Sees(Callback):
        def __init__(self) -> None:
            self.seen: list[tuple[float, ...]] = []

        def on_validation_end(self, trainer: Trainer, module: Any) -> None:
            found = trainer.callback_metrics, trainer.logged_metrics, trainer.progress_bar_metrics
            self.seen.append((*(float(values["loss"]) - module.newest for values in found), float(found[0]["both"])))

    sees = Sees()
    trainer = quiet(
        max_epochs=2,
        val_check_interval=3,
        callbacks=sees,
        logger="csv",
        log_every_n_steps=50,
        default_root_dir=tmp_path,
    )
    trainer.fit(Logs(), loader(), loader())
    assert sees.seen == [(0.0, 0.0, 0.0, 2.0)] * 4


def test_the_numbers_of_validation_batches_are_known_before_the_first() -> None:
    """Without a sanity check, as in Lightning; also if ``fit`` ends before a validation."""
    trainer = quiet(max_epochs=1, check_val_every_n_epoch=2, limit_val_batches=3)
    trainer.fit(Regression(), loader(), [loader(), loader(25)])
    assert trainer.num_val_batches == [3, 2]


@pytest.mark.parametrize("interval", [1.0, 0.5, 2, 3, 4])
def test_validations_do_not_change_the_order_of_the_next_epoch(interval: float, tmp_path: Path) -> None:
    """It is that of a plain loop, also in a run resumed from the last validation of the first epoch."""

    def shuffled() -> DataLoader[Any]:  # four whole batches: torch draws again where it finds that there is no fifth
        rows, generator = TensorDataset(torch.arange(32.0)[:, None], torch.zeros(32, 1)), torch.Generator()
        return DataLoader(rows, 8, shuffle=True, generator=generator.manual_seed(1))

    class Seen(Regression):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            seen.append(batch[0][:, 0].tolist())
            return self.loss((batch[0].expand(-1, 6), batch[1]))

    class SavesOnce(Callback):
        def on_validation_end(self, trainer: Trainer, module: Any) -> None:
            if trainer.current_epoch == 0:
                trainer.save_checkpoint(tmp_path / "saved")

    seen: list[list[float]] = []
    plain = shuffled()
    expected = [batch[0][:, 0].tolist() for _ in range(3) for batch in plain]
    settings: dict[str, Any] = {"max_epochs": 3, "val_check_interval": interval}
    quiet(callbacks=SavesOnce(), **settings).fit(Seen(), shuffled(), loader())
    assert seen == expected
    seen.clear()
    quiet(**settings).fit(Seen(), shuffled(), loader(), ckpt_path=tmp_path / "saved")
    assert seen == expected[-len(seen) :]
    assert len(seen) in (8, 9)


class SeesCombined(Regression):
    """Notes what it validates on."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[float, float]] = []

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.seen.append((float(batch["a"][0][0]), float(batch["b"][0][0])))


class SavesAfter(Callback):
    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_batch_end(self, trainer: Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 2 and not self.path.exists():
            trainer.save_checkpoint(self.path)


def test_each_validation_of_a_combined_loader_begins_at_the_start(tmp_path: Path) -> None:
    """Also in a run that is resumed between two of an epoch, where a limit left batches out."""
    path = tmp_path / "within"
    numbers = {"a": torch.arange(8.0), "b": torch.arange(10.0, 14)}
    for ckpt_path, validations in ((None, 3), (path, 2)):
        module = SeesCombined()
        parts = {name: DataLoader(TensorDataset(each), batch_size=1) for name, each in numbers.items()}
        trainer = quiet(max_epochs=1, val_check_interval=2, limit_val_batches=2, callbacks=[SavesAfter(path)])
        trainer.fit(module, loader(), CombinedLoader(parts, "max_size_cycle"), ckpt_path=ckpt_path)
        assert module.seen == [(0.0, 10.0), (1.0, 11.0)] * validations
