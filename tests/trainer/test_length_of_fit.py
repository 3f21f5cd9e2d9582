"""How long a fit lasts, what it reads of its loaders, and what a second one does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler

from core import Callback, Trainer, seed_everything
from core.data import CombinedLoader
from core.errors import ConfigurationError

from .regression import ITEMS, Regression, assert_same, dataset, loader, quiet


@pytest.mark.parametrize(
    ("settings", "epochs", "steps"),
    [
        ({"max_epochs": 0}, 0, 0),
        ({"max_steps": 0}, 0, 0),
        ({"max_epochs": 2}, 2, 14),
        ({"max_epochs": 2, "limit_train_batches": 3}, 2, 6),
        ({"max_epochs": 2, "limit_train_batches": 99}, 2, 14),
        ({"max_steps": 7}, 1, 7),
        ({"max_steps": 9}, 2, 9),
        ({"max_epochs": 5, "max_steps": 14}, 2, 14),
        ({"max_epochs": 1, "max_steps": 99}, 1, 7),
        ({"max_epochs": 2, "accumulate_grad_batches": 2}, 2, 8),
        ({"max_epochs": 1, "accumulate_grad_batches": 99}, 1, 1),
        ({"max_steps": 5, "accumulate_grad_batches": 2}, 2, 5),
        ({"max_epochs": 2, "accumulate_grad_batches": 2, "limit_train_batches": 3}, 2, 4),
    ],
)
def test_epochs_and_steps(settings: dict[str, Any], epochs: int, steps: int) -> None:
    """The sooner of both ends it; steps are the optimizer's, epochs those that were begun, as in Lightning."""
    trainer = quiet(**settings)
    trainer.fit(Regression(), loader())
    assert (trainer.current_epoch, trainer.global_step) == (epochs, steps)


def test_a_fit_without_limits_is_a_thousand_epochs() -> None:
    """Unless ``max_epochs`` or ``max_steps`` says otherwise."""
    assert (quiet().max_epochs, quiet().max_steps) == (1000, -1)
    assert (quiet(max_steps=3).max_epochs, quiet(max_steps=3).max_steps) == (-1, 3)


@pytest.mark.parametrize(("every", "expected"), [(1, [0, 1, 2, 3, 4]), (2, [1, 3]), (9, [])])
def test_epochs_between_validations(every: int, expected: list[int]) -> None:
    """After every n-th epoch."""
    seen: list[int] = []

    class Look(Callback):
        def on_validation_end(self, trainer: Trainer, module: Any) -> None:
            seen.append(trainer.current_epoch)

    trainer = quiet(max_epochs=5, limit_train_batches=1, check_val_every_n_epoch=every, callbacks=Look())
    trainer.fit(Regression(), loader(), loader())
    assert seen == expected


def test_a_second_fit_starts_with_the_module_as_it_is() -> None:
    """Two fits are two loops by hand one after another, each with its own optimizer, epochs and steps from 0."""
    torch.manual_seed(1)
    expected = Regression()
    for _ in range(2):
        optimizer = expected.configure_optimizers()
        for _ in range(2):
            for batch in loader():
                optimizer.zero_grad()
                expected.loss(batch).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
    torch.manual_seed(1)
    module, trainer = Regression(), quiet(max_epochs=2)
    for _ in range(2):
        trainer.fit(module, loader())
        assert (trainer.current_epoch, trainer.global_step) == (2, 14)
    assert_same(module, expected)


def test_two_trainers_with_different_settings_in_one_process() -> None:
    """The second is not touched by the first, nor the first by the second."""
    module, double = Regression(), Regression()
    first = quiet(max_epochs=1)
    second = quiet(max_epochs=2, precision="64-true", accumulate_grad_batches=7)
    second.fit(double, loader())
    first.fit(module, loader())
    assert (first.global_step, second.global_step) == (7, 2)
    assert next(module.parameters()).dtype is torch.float32
    assert next(double.parameters()).dtype is torch.float64
    assert torch.get_default_dtype() is torch.float32


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        rows = dataset()
        return (rows[index] for index in range(ITEMS))


LOADERS: dict[str, Callable[[], Any]] = {
    "stream": lambda: DataLoader(Stream(), batch_size=8),
    "list": lambda: list(loader()),
    "collated": lambda: DataLoader(list(loader()), batch_size=None),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("kind", LOADERS)
def test_other_loaders_are_as_good(kind: str, accumulate: int) -> None:
    """A stream without length, a list of batches, and batches made beforehand give what a DataLoader gives."""
    results = []
    for batches in (loader(), LOADERS[kind]()):
        torch.manual_seed(1)
        module, trainer = Regression(), quiet(max_epochs=2, accumulate_grad_batches=accumulate)
        module.network[2] = torch.nn.Identity()  # each kind of loader draws its own number of random numbers
        trainer.fit(module, batches, batches)
        results.append((module, trainer.global_step, trainer.validate(module, batches)))
    (module, *rest), (other, *others) = results
    assert_same(module, other)
    assert rest == others


def test_a_generator_serves_one_epoch() -> None:
    """The second finds it exhausted, which is an error and not an epoch without steps."""
    trainer = quiet(max_epochs=1)
    trainer.fit(Regression(), (batch for batch in loader()))
    assert trainer.global_step == 7
    trainer = quiet(max_epochs=2)
    with pytest.raises(ConfigurationError, match=r"data: generator has no batch, and a pass before had some"):
        trainer.fit(Regression(), (batch for batch in loader()))
    assert trainer.global_step == 7


@pytest.mark.parametrize("accumulate", [1, 2])
def test_an_endless_generator_is_read_no_further_than_needed(accumulate: int) -> None:
    """With a limit an epoch, it goes on in the next epoch with the batch after the last."""
    read: list[int] = []

    def endless() -> Iterator[Any]:
        batch = next(iter(loader()))
        while True:
            read.append(len(read))
            yield batch

    trainer = quiet(max_epochs=3, limit_train_batches=4, accumulate_grad_batches=accumulate)
    trainer.fit(Regression(), endless())
    assert trainer.global_step == 12 / accumulate
    assert len(read) == 12


@pytest.mark.parametrize("empty", [[], DataLoader(dataset(3), batch_size=8, drop_last=True)])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_loaders_without_a_batch_are_refused(empty: Any, accumulate: int) -> None:
    """In training and in each kind of evaluation, instead of doing nothing in silence."""
    trainer = quiet(max_epochs=3, accumulate_grad_batches=accumulate)
    with pytest.raises(ConfigurationError, match="train_dataloaders: the training loader is empty in epoch 0"):
        trainer.fit(Regression(), empty)
    with pytest.raises(ConfigurationError, match="dataloaders: the validation loader is empty"):
        trainer.fit(Regression(), loader(), empty)
    for stage in ("validate", "test", "predict"):
        with pytest.raises(ConfigurationError, match=r"dataloaders: the \w+ loader is empty"):
            getattr(trainer, stage)(Regression(), empty)


class ByEpoch(Sampler[int]):
    """A sampler that orders by epoch, as torch's DistributedSampler does."""

    def __init__(self) -> None:
        self.epochs: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)

    def __iter__(self) -> Iterator[int]:
        return iter(range(ITEMS))

    def __len__(self) -> int:
        return ITEMS


def test_samplers_and_data_sets_are_told_the_epoch() -> None:
    """What has a ``set_epoch``, wherever it stands in a loader, is called before each pass, on one process too."""
    direct, within, of_validation = ByEpoch(), ByEpoch(), ByEpoch()

    class Epochal(Stream):
        epochs: ClassVar[list[int]] = []

        def set_epoch(self, epoch: int) -> None:
            self.epochs.append(epoch)

    batches = torch.utils.data.BatchSampler(within, 8, drop_last=False)
    trainer = quiet(max_epochs=3)
    trainer.fit(Regression(), loader(sampler=direct), loader(sampler=of_validation))
    trainer.fit(Regression(), DataLoader(dataset(), batch_sampler=batches))
    trainer.fit(Regression(), DataLoader(Epochal(), batch_size=8))
    assert direct.epochs == within.epochs == of_validation.epochs == Epochal.epochs == [0, 1, 2]


class Growing(Sampler[list[int]]):
    """A curriculum: as many batches as the number of the epoch, from 1."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        return iter([[0, 1]] * len(self))

    def __len__(self) -> int:
        return self.epoch + 1


def test_a_length_that_depends_on_the_epoch(tmp_path: Path) -> None:
    """Each epoch of training and of validation has all of its batches, in a run that is resumed within one too."""

    class Logs(Regression):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[tuple[str, int, int]] = []

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.seen.append(("train", self.current_epoch, batch_idx))
            return super().training_step(batch[0] if len(batch) == 1 else batch, batch_idx)

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.seen.append(("val", self.current_epoch, batch_idx))

    class Save(Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if (trainer.current_epoch, batch_idx) == (2, 1):
                trainer.save_checkpoint(tmp_path / "within.ckpt")

    def growing() -> DataLoader[Any]:
        return DataLoader(dataset(), batch_sampler=Growing())

    whole, resumed, joined = Logs(), Logs(), Logs()
    quiet(max_epochs=3, callbacks=Save()).fit(whole, growing(), growing())
    stages = [(stage, epoch) for epoch in range(3) for stage in ("train", "val")]
    assert whole.seen == [(stage, epoch, index) for stage, epoch in stages for index in range(epoch + 1)]
    quiet(max_epochs=3).fit(resumed, growing(), growing(), ckpt_path=tmp_path / "within.ckpt")
    assert resumed.seen == whole.seen[-4:]
    quiet(max_epochs=3).fit(joined, CombinedLoader([growing()], "max_size"))
    assert [seen for seen in joined.seen if seen[0] == "train"] == [seen for seen in whole.seen if seen[0] == "train"]


class Endless(Sampler[int]):
    """Goes on after its length, as MMEngine's InfiniteSampler does."""

    def __len__(self) -> int:
        return 12

    def __iter__(self) -> Iterator[int]:
        while True:
            yield from torch.randperm(12).tolist()


class Counts(Regression):
    def __init__(self) -> None:
        super().__init__()
        self.batches: list[tuple[int, int]] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.batches.append((self.current_epoch, batch_idx))
        return super().training_step(batch, batch_idx)


def test_an_epoch_ends_at_the_length_of_data_that_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With a warning; a run that is resumed within an epoch, or between two, goes on as one that was not."""

    class Save(Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            trainer.save_checkpoint(tmp_path / str(trainer.global_step))

    def endless() -> DataLoader[Any]:
        return loader(4, sampler=Endless())

    seed_everything(0)
    whole = Counts()
    quiet(max_epochs=3, callbacks=Save()).fit(whole, endless())
    assert whole.batches == [(epoch, index) for epoch in range(3) for index in range(3)]
    assert "data: a pass goes on after its length, 3, at which an epoch" in caplog.text
    for saved in (2, 3, 4):
        resumed = Counts()
        quiet(max_epochs=3).fit(resumed, endless(), ckpt_path=tmp_path / str(saved))
        assert resumed.batches == whole.batches[saved:]
        assert_same(whole, resumed)
