"""fit on one process is bit for bit the loop that a user would write by hand, down to the random numbers drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ExponentialLR, LRScheduler, OneCycleLR, SequentialLR, StepLR
from torch.utils.data import DataLoader, Dataset, IterableDataset

from core.errors import ConfigurationError

from .regression import ITEMS, Regression, assert_same, dataset, loader, network, quiet

EPOCHS = 3


def seeded() -> None:
    torch.manual_seed(3)


class Noisy(Dataset[Any]):
    """Draws from the global generator whenever an item is read."""

    def __init__(self) -> None:
        self.rows = dataset()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        inputs, targets = self.rows[index]
        return inputs + torch.rand(()) / 10, targets


class NoisyStream(IterableDataset[Any]):
    """The same as a stream, which does not know its length."""

    def __iter__(self) -> Iterator[Any]:
        noisy = Noisy()
        return (noisy[index] for index in range(ITEMS))


def mse(module: nn.Module, batch: Any) -> Tensor:
    return nn.functional.mse_loss(module(batch[0]), batch[1])


def test_sgd() -> None:
    """Without anything else: SGD with momentum."""
    seeded()
    expected = network()
    optimizer = torch.optim.SGD(expected.parameters(), lr=0.05, momentum=0.9)
    for _ in range(EPOCHS):
        for batch in loader():
            optimizer.zero_grad()
            mse(expected, batch).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    drawn = torch.get_rng_state()

    seeded()
    module = Regression()
    trainer = quiet(max_epochs=EPOCHS)
    trainer.fit(module, loader())
    assert_same(module.network, expected)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert (trainer.current_epoch, trainer.global_step) == (EPOCHS, EPOCHS * 7)


SCHEDULES: dict[str, tuple[Callable[[Any], Any], str, int]] = {
    "epoch": (lambda optimizer: StepLR(optimizer, 1, 0.5), "epoch", 1),
    "every second epoch": (lambda optimizer: ExponentialLR(optimizer, 0.5), "epoch", 2),
    "step": (lambda optimizer: OneCycleLR(optimizer, 0.05, total_steps=EPOCHS * 7), "step", 1),
    "every third step": (lambda optimizer: StepLR(optimizer, 2, 0.5), "step", 3),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_shuffling_dropout_adamw_scheduler_and_validation(name: str) -> None:
    """Everything that draws random numbers or keeps a count, with a validation after each epoch."""
    make, interval, frequency = SCHEDULES[name]
    seeded()
    expected = network()
    optimizer = torch.optim.AdamW(expected.parameters(), lr=0.01)
    scheduler = make(optimizer)
    train, held_out = loader(shuffle=True), loader(batch_size=20)
    steps = 0
    for epoch in range(EPOCHS):
        expected.train()
        for batch in train:
            optimizer.zero_grad()
            mse(expected, batch).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            steps += 1
            if interval == "step" and steps % frequency == 0:
                scheduler.step()
        if interval == "epoch" and (epoch + 1) % frequency == 0:
            scheduler.step()
        expected.eval()
        with torch.no_grad():
            errors = [mse(expected, batch) * len(batch[0]) for batch in held_out]
    drawn = torch.get_rng_state()

    seeded()
    module = ScheduledRegression(make, interval, frequency)
    trainer = quiet(max_epochs=EPOCHS)
    trainer.fit(module, loader(shuffle=True), loader(batch_size=20))
    assert_same(module.network, expected)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert module.rate == scheduler.get_last_lr()
    assert trainer.callback_metrics["error"].item() == pytest.approx(float(sum(errors)) / ITEMS, rel=1e-6)


class ScheduledRegression(Regression):
    def __init__(self, make: Callable[[Any], Any], interval: str, frequency: int) -> None:
        super().__init__()
        self.make, self.interval, self.frequency = make, interval, frequency
        self.rate: Any = None

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        self.scheduler = self.make(optimizer)
        described = {"scheduler": self.scheduler, "interval": self.interval, "frequency": self.frequency}
        return {"optimizer": optimizer, "lr_scheduler": described}

    def on_fit_end(self) -> None:
        self.rate = self.scheduler.get_last_lr()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("clip", [None, ("norm", 0.3), ("value", 0.01)])
def test_accumulation_and_clipping(clip: tuple[str, float] | None, stream: bool) -> None:
    """Groups of three batches, and an epoch's last one alone, each loss divided by three; clipping before the step.

    The data set draws a random number for each item; only where the number of batches is unknown must a batch be read
    ahead of the one before it.
    """
    seeded()
    expected = network()
    optimizer = torch.optim.SGD(expected.parameters(), lr=0.05, momentum=0.9)
    for _ in range(EPOCHS):
        batches: Any = DataLoader(Noisy(), batch_size=8)
        pending = list(batches) if stream else []
        for index, batch in enumerate(pending or batches):
            (mse(expected, batch) / 3).backward()  # type: ignore[no-untyped-call]
            if index in (2, 5, 6):
                if clip is not None and clip[0] == "norm":
                    nn.utils.clip_grad_norm_(expected.parameters(), clip[1])
                elif clip is not None:
                    nn.utils.clip_grad_value_(expected.parameters(), clip[1])
                optimizer.step()
                optimizer.zero_grad()

    seeded()
    module = Regression()
    clipping = {} if clip is None else {"gradient_clip_algorithm": clip[0], "gradient_clip_val": clip[1]}
    trainer = quiet(max_epochs=EPOCHS, accumulate_grad_batches=3, **clipping)
    if stream:
        # All is read before the first step, as by hand above, so that the draws come in the same order.
        trainer.fit(module, AllAtOnce())
    else:
        trainer.fit(module, DataLoader(Noisy(), batch_size=8))
    assert trainer.global_step == EPOCHS * 3
    assert_same(module.network, expected)


class AllAtOnce:
    """An iterable without length that reads all of its batches when the first is asked for."""

    def __iter__(self) -> Iterator[Any]:
        return iter(list(DataLoader(NoisyStream(), batch_size=8)))


def test_clipping_without_accumulation() -> None:
    """Gradients are clipped at each step."""
    seeded()
    expected = network()
    optimizer = torch.optim.SGD(expected.parameters(), lr=0.05, momentum=0.9)
    for batch in loader():
        optimizer.zero_grad()
        mse(expected, batch).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(expected.parameters(), 0.1)
        optimizer.step()

    seeded()
    module = Regression()
    quiet(max_epochs=1, gradient_clip_val=0.1).fit(module, loader())
    assert_same(module.network, expected)


def autocast(dtype: torch.dtype) -> AbstractContextManager[Any]:
    return torch.autocast("cpu", dtype=dtype)


@pytest.mark.parametrize("clip", [None, 0.1])
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("precision", ["64-true", "bf16-mixed", "16-mixed"])
def test_precisions(precision: str, accumulate: int, clip: float | None) -> None:
    """The whole step, its loss included, runs in the precision; a scaled loss is unscaled once before clipping."""
    seeded()
    expected = network()
    dtype = torch.float64 if precision == "64-true" else torch.float32
    expected.to(dtype)
    optimizer = torch.optim.SGD(expected.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", enabled=precision == "16-mixed")
    half = {"16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}.get(precision)
    for _ in range(EPOCHS):
        for index, (inputs, targets) in enumerate(loader()):
            with nullcontext() if half is None else autocast(half):
                loss = mse(expected, (inputs.to(dtype), targets.to(dtype)))
            scaler.scale(loss / accumulate if accumulate > 1 else loss).backward()  # type: ignore[no-untyped-call]
            if (index + 1) % accumulate == 0 or index == 6:
                if clip is not None:
                    scaler.unscale_(optimizer)
                    nn.utils.clip_grad_norm_(expected.parameters(), clip)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()

    seeded()
    module = Regression()
    trainer = quiet(max_epochs=EPOCHS, precision=precision, accumulate_grad_batches=accumulate, gradient_clip_val=clip)
    trainer.fit(module, loader())
    assert next(module.parameters()).dtype is dtype
    assert_same(module.network, expected)


class DictRegression(Regression):
    """Takes batches that are mappings, returns a mapping, and skips every other batch."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if batch_idx % 2:
            return None
        assert batch["name"] == [f"row{index}" for index in range(8 * batch_idx, 8 * batch_idx + len(batch["x"]))]
        return {"loss": self.loss((batch["x"], batch["y"])), "other": "kept out"}


def rows() -> list[dict[str, Any]]:
    inputs, targets = dataset().tensors
    return [{"x": inputs[index], "y": targets[index], "name": f"row{index}"} for index in range(ITEMS)]


def test_mappings_as_batches_and_outputs_and_skipped_batches() -> None:
    """A batch whose step returns ``None`` leaves the parameters alone."""
    seeded()
    expected = network()
    optimizer = torch.optim.SGD(expected.parameters(), lr=0.05, momentum=0.9)
    for index, batch in enumerate(loader()):
        if index % 2 == 0:
            optimizer.zero_grad()
            mse(expected, batch).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    seeded()
    module = DictRegression()
    trainer = quiet(max_epochs=1)
    trainer.fit(module, DataLoader(rows(), batch_size=8))  # type: ignore[arg-type]
    assert_same(module.network, expected)
    assert trainer.global_step == 7


class SkippingRegression(Regression):
    """Skips all batches from one on."""

    first_skipped = 0

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.loss(batch) if batch_idx < self.first_skipped else None


@pytest.mark.parametrize("settings", [{}, {"accumulate_grad_batches": 3}, {"gradient_clip_val": 0.1}])
@pytest.mark.parametrize("precision", ["32-true", "16-mixed"])
def test_steps_whose_batches_are_all_skipped(precision: str, settings: dict[str, Any]) -> None:
    """Nothing is clipped, unscaled or stepped where no batch gave a loss; a whole epoch of them is an error."""
    module = SkippingRegression()
    before = [parameter.clone() for parameter in module.parameters()]
    with pytest.raises(ConfigurationError, match="None for every batch of epoch 0"):
        quiet(max_epochs=2, precision=precision, **settings).fit(module, loader())
    assert all(torch.equal(now, then) for now, then in zip(module.parameters(), before, strict=True))

    seeded()
    expected = Regression()
    quiet(max_epochs=1, precision=precision, limit_train_batches=3, **settings).fit(expected, loader())
    seeded()
    module = SkippingRegression()
    module.first_skipped = 3
    quiet(max_epochs=1, precision=precision, **settings).fit(module, loader())
    assert_same(module, expected)


def test_gradients_from_before_the_fit_do_not_count() -> None:
    """What was left in the gradients, by an interrupted fit for instance, is not in the first step."""
    seeded()
    expected = Regression()
    quiet(max_epochs=1).fit(expected, loader())
    seeded()
    module = Regression()
    for parameter in module.parameters():
        parameter.grad = torch.full_like(parameter, 100.0)
    quiet(max_epochs=1).fit(module, loader())
    assert_same(module, expected)


class Sequenced(Regression):
    def configure_optimizers(self) -> Any:
        self.optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
        parts: list[LRScheduler] = [ExponentialLR(self.optimizer, 0.5), ExponentialLR(self.optimizer, 0.1)]
        return [self.optimizer], [SequentialLR(self.optimizer, parts, milestones=[2])]


@pytest.mark.filterwarnings("ignore:The epoch parameter in")  # torch 2.6's own SequentialLR
def test_a_sequence_of_schedulers() -> None:
    """``[optimizer], [scheduler]`` with a scheduler made of others: stepped at each epoch's end, four times here."""
    module = Sequenced()
    quiet(max_epochs=4, limit_train_batches=1).fit(module, loader())
    assert module.optimizer.param_groups[0]["lr"] == pytest.approx(0.01)
