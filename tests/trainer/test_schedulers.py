"""Learning rate schedulers that monitor a metric, or are stepped in the user's own way; and no optimizer at all."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch.optim import SGD
from torch.optim.lr_scheduler import CyclicLR, LambdaLR, OneCycleLR, ReduceLROnPlateau, StepLR

from core import Callback, Module, Trainer
from core.callbacks import BackboneFinetuning
from core.errors import ConfigurationError, CoreError

from .regression import Regression, assert_same, loader, quiet


class Plateau(Regression):
    """Its learning rate falls in every epoch in which the error did not fall by half."""

    options: ClassVar[dict[str, Any]] = {"monitor": "error"}

    def __init__(self) -> None:
        super().__init__()
        self.rates: list[float] = []

    def configure_optimizers(self) -> Any:
        optimizer = SGD(self.parameters(), lr=0.05)
        scheduler = ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, **self.options}}

    def on_train_epoch_start(self) -> None:
        self.rates.append(self.optimizers().param_groups[0]["lr"])


def test_a_plateau_is_that_of_the_loop_by_hand() -> None:
    """Stepped after each validation, with its metric."""
    torch.manual_seed(1)
    module = Plateau()
    quiet(max_epochs=4).fit(module, loader(), loader(batch_size=50))
    torch.manual_seed(1)
    expected = Plateau()
    described = expected.configure_optimizers()
    optimizer, scheduler = described["optimizer"], described["lr_scheduler"]["scheduler"]
    rates = []
    for _ in range(4):
        rates.append(optimizer.param_groups[0]["lr"])
        expected.train()
        for batch in loader():
            optimizer.zero_grad()
            expected.loss(batch).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        expected.eval()
        with torch.no_grad():
            (batch,) = loader(batch_size=50)
            scheduler.step(expected.loss(batch))
    assert module.rates == rates
    assert rates[-1] < rates[0]


class Saves(Callback):
    """In the named hook of the second epoch."""

    def __init__(self, path: Path, hook: str) -> None:
        self.path, self.hook = path, hook

    def save(self, trainer: Trainer, hook: str) -> None:
        if hook == self.hook and trainer.current_epoch == 1:
            trainer.save_checkpoint(self.path)

    def on_validation_end(self, trainer: Trainer, module: Module) -> None:
        self.save(trainer, "on_validation_end")

    def on_train_epoch_end(self, trainer: Trainer, module: Module) -> None:
        self.save(trainer, "on_train_epoch_end")


@pytest.mark.parametrize("hook", ["on_validation_end", "on_train_epoch_end"])
def test_a_plateau_is_resumed(hook: str, tmp_path: Path) -> None:
    """Neither missed nor stepped twice, wherever the checkpoint was saved."""
    torch.manual_seed(1)
    whole = Plateau()
    saves = Saves(tmp_path / "saved", hook)
    quiet(max_epochs=4, callbacks=saves).fit(whole, loader(), loader())
    resumed = Plateau()
    quiet(max_epochs=4).fit(resumed, loader(), loader(), ckpt_path=saves.path)
    assert resumed.rates == whole.rates[2:]
    assert_same(resumed, whole)


class ByStep(Plateau):
    """Monitors, every three steps, what the validation after these steps logs: 1, 2, 3, …."""

    options: ClassVar[dict[str, Any]] = {"monitor": "count", "interval": "step", "frequency": 3}

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.stepped: list[tuple[int, float]] = []

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.count: torch.Tensor = self.count + 1
        self.log("count", self.count)

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        self.stepped.append((self.global_step, float(metric)))
        scheduler.step(metric)


def test_a_plateau_of_steps_monitors_the_validation_after_its_step() -> None:
    """Not the one before, which is not there for the first step."""
    module = ByStep()
    quiet(max_steps=9, val_check_interval=3, check_val_every_n_epoch=None).fit(module, loader(), loader(50))
    assert module.stepped == [(3, 1.0), (6, 2.0), (9, 3.0)]
    often = ByStep()
    quiet(max_steps=6, val_check_interval=2, check_val_every_n_epoch=None).fit(often, loader(), loader(50))
    assert often.stepped == [(3, 1.0), (6, 3.0)], "no validation follows step 3"


@pytest.mark.parametrize(
    ("interval", "validates", "expected"),
    [
        ("step", {"val_check_interval": 3, "check_val_every_n_epoch": None}, [(3, 1.0), (6, 2.0), (9, 3.0), (12, 4.0)]),
        ("epoch", {"check_val_every_n_epoch": 2, "limit_train_batches": 3}, [(6, 1.0), (12, 2.0)]),
    ],
)
def test_a_plateau_takes_each_measured_value_once(
    interval: str, validates: dict[str, Any], expected: list[tuple[int, float]], tmp_path: Path
) -> None:
    """In the steps, or epochs, between two validations it is not stepped; neither in a run that is resumed there."""

    class Often(ByStep):
        options: ClassVar[dict[str, Any]] = {"monitor": "count", "interval": interval, "strict": False}

    class SavesAtEight(Callback):
        def on_train_batch_end(self, trainer: Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if trainer.global_step == 8:
                trainer.save_checkpoint(tmp_path / "saved")

    settings: dict[str, Any] = {"max_steps": 12, **validates}
    whole, resumed = Often(), Often()
    quiet(callbacks=SavesAtEight(), **settings).fit(whole, loader(), loader(50))
    quiet(**settings).fit(resumed, loader(), loader(50), ckpt_path=tmp_path / "saved")
    assert whole.stepped == expected
    assert resumed.stepped == [each for each in expected if each[0] > 8]
    assert_same(resumed, whole)


@pytest.mark.parametrize("hook", ["on_train_batch_end", "on_validation_end"])
def test_a_plateau_of_steps_is_resumed(hook: str, tmp_path: Path) -> None:
    """Neither missed nor stepped twice, before and after the validation that it waits for."""

    class SavesAtSix(Callback):
        def save(self, trainer: Trainer, of: str) -> None:
            if of == hook and trainer.global_step == 6:
                trainer.save_checkpoint(tmp_path / "saved")

        def on_train_batch_end(self, trainer: Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            self.save(trainer, "on_train_batch_end")

        def on_validation_end(self, trainer: Trainer, module: Any) -> None:
            self.save(trainer, "on_validation_end")

    settings: dict[str, Any] = {"max_steps": 12, "val_check_interval": 3, "check_val_every_n_epoch": None}
    whole = ByStep()
    quiet(callbacks=SavesAtSix(), **settings).fit(whole, loader(), loader(50))
    resumed = ByStep()
    quiet(**settings).fit(resumed, loader(), loader(50), ckpt_path=tmp_path / "saved")
    assert whole.stepped == [(step, step / 3) for step in (3, 6, 9, 12)]
    assert resumed.stepped == whole.stepped[1 if hook == "on_train_batch_end" else 2 :]
    assert_same(resumed, whole)


class Halved(Regression):
    """Its learning rate halves with each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.rates: list[float] = []

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        return [optimizer], [StepLR(optimizer, 1, gamma=0.5)]

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.rates.append(self.optimizers().param_groups[0]["lr"] / 0.05)


@pytest.mark.parametrize("is_stream", [False, True])
def test_the_schedulers_of_epochs_are_stepped_before_the_end_of_the_last_batch(is_stream: bool) -> None:
    """As those of steps are, and as in Lightning; also where the number of batches is not known."""
    batches: Any = Batches() if is_stream else loader(25)
    module = Halved()
    trainer = quiet(max_epochs=2)
    trainer.fit(module, batches)
    assert module.rates == [1.0, 0.5, 0.5, 0.25]
    assert trainer.optimizers[0].param_groups[0]["lr"] == 0.0125


class Batches:
    """Two batches, without a length."""

    def __iter__(self) -> Any:
        return iter(list(loader(25)))


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_scheduler_of_epochs_is_resumed_after_the_last_batch(is_stream: bool, tmp_path: Path) -> None:
    """Neither missed nor stepped twice; the epoch is validated then."""

    class SavesLast(Callback):
        validations = 0

        def on_train_batch_end(self, trainer: Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if trainer.global_step == 2:
                trainer.save_checkpoint(tmp_path / "saved")

        def on_validation_end(self, trainer: Trainer, module: Any) -> None:
            self.validations += 1

    def batches() -> Any:
        return Batches() if is_stream else loader(25)

    whole, resumed, saves, counts = Halved(), Halved(), SavesLast(), SavesLast()
    quiet(max_epochs=3, callbacks=saves).fit(whole, batches(), loader())
    quiet(max_epochs=3, callbacks=counts).fit(resumed, batches(), loader(), ckpt_path=tmp_path / "saved")
    assert resumed.rates == whole.rates[2:]
    assert (saves.validations, counts.validations) == (3, 3)
    assert_same(resumed, whole)


class Overflowing(Regression):
    """Its losses are sometimes infinite, so 16-mixed skips the step."""

    def __init__(self, interval: str, frequency: int = 1) -> None:
        super().__init__()
        self.interval, self.frequency, self.rates = interval, frequency, list[float]()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.loss(batch) * (float("inf") if batch_idx in (1, 2, 6) else 1e-3)

    def configure_optimizers(self) -> Any:
        optimizer = SGD(self.parameters(), lr=0.5)
        schedule = {"scheduler": StepLR(optimizer, 1, 0.5), "interval": self.interval, "frequency": self.frequency}
        return [optimizer], [schedule]

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.rates.append(self.optimizers().param_groups[0]["lr"])


def test_a_scheduler_waits_where_its_optimizer_has_skipped_a_step() -> None:
    """One of steps counts the steps that were taken; one of epochs counts epochs, however the last step was."""
    module = Overflowing("step")
    trainer = quiet(max_epochs=1, precision="16-mixed")
    trainer.fit(module, loader())
    assert module.rates == [0.25, 0.25, 0.25, 0.125, 0.0625, 0.03125, 0.03125]
    assert trainer.global_step == 7
    module = Overflowing("epoch")
    quiet(max_epochs=2, precision="16-mixed").fit(module, loader())
    assert module.rates == [0.5] * 6 + [0.25] * 7 + [0.125]


def test_the_frequency_of_a_scheduler_counts_steps_that_were_taken(tmp_path: Path) -> None:
    """Also of those before a checkpoint, from which a run goes on."""

    class SavesAtThree(Callback):
        def on_train_batch_end(self, trainer: Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if trainer.global_step == 3:
                trainer.save_checkpoint(tmp_path / "saved")

    whole, resumed = Overflowing("step", 2), Overflowing("step", 2)
    quiet(max_epochs=1, precision="16-mixed", callbacks=SavesAtThree()).fit(whole, loader())
    quiet(max_epochs=1, precision="16-mixed").fit(resumed, loader(), ckpt_path=tmp_path / "saved")
    assert whole.rates == [0.5, 0.5, 0.5, 0.25, 0.25, 0.125, 0.125]
    assert resumed.rates == whole.rates[3:]


class Misnamed(Plateau):
    options: ClassVar[dict[str, Any]] = {"monitor": "eror"}


class MisnamedByStep(Plateau):
    options: ClassVar[dict[str, Any]] = {"monitor": "eror", "interval": "step"}


class Lenient(Plateau):
    options: ClassVar[dict[str, Any]] = {"monitor": "eror", "strict": False}


def test_a_metric_that_was_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Is an error with those that were; or a warning."""
    with pytest.raises(ConfigurationError, match=r"ReduceLROnPlateau monitors 'eror'.*Logged so far: 'error'"):
        quiet(max_epochs=1).fit(Misnamed(), loader(), loader())
    with pytest.raises(ConfigurationError, match="set 'frequency' to the number of steps between two validations"):
        quiet(max_epochs=1).fit(MisnamedByStep(), loader(), loader())
    with caplog.at_level(logging.WARNING):
        module = Lenient()
        quiet(max_epochs=2).fit(module, loader(), loader())
    assert "Its step is skipped" in caplog.text
    assert module.rates == [0.05, 0.05]


class OwnWay(Plateau):
    """Steps a scheduler of any kind."""

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        assert isinstance(scheduler, ReduceLROnPlateau)
        scheduler.step(metric * 0 + 1)


def test_an_overridden_scheduler_step() -> None:
    """Is called with the scheduler and its metric."""
    module = OwnWay()
    quiet(max_epochs=3).fit(module, loader(), loader())
    assert module.rates == [0.05, 0.05, 0.025]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "'monitor' does not say which"),
        ({"monitor": 3}, "must be the name of a logged metric"),
        ({"monitor": "error", "freqency": 2}, "Did you mean 'frequency'"),
        ({"monitor": "error", "reduce_on_plateau": False}, "has no effect"),
    ],
)
def test_options_that_are_refused(options: dict[str, Any], said: str) -> None:
    """With the remedy."""
    make: Any = type("Refused", (Plateau,), {"options": options})
    with pytest.raises(CoreError, match=said):
        quiet(max_epochs=1).fit(make(), loader(), loader())


class Foreign(Regression):
    def configure_optimizers(self) -> Any:
        return [SGD(self.parameters(), lr=0.1)], [StepLR(SGD(self.parameters(), lr=0.1), 1)]


def test_a_scheduler_of_another_optimizer() -> None:
    """Would change nothing."""
    with pytest.raises(ConfigurationError, match="the optimizer of StepLR is not among those returned"):
        quiet(max_epochs=1).fit(Foreign(), loader())


class Nothing(Regression):
    def configure_optimizers(self) -> None:
        """Nothing is optimized."""


def test_no_optimizer(caplog: pytest.LogCaptureFixture) -> None:
    """The steps run, nothing changes, and a warning says so."""
    module = Nothing()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    trainer = quiet(max_epochs=1)
    with caplog.at_level(logging.WARNING):
        trainer.fit(module, loader())
    assert "nothing is optimized" in caplog.text
    assert trainer.global_step == 7
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


class Unfrozen(Regression):
    """Its first layer is trained from epoch 1 on."""

    def __init__(self, scheduler: Callable[[Any], Any]) -> None:
        super().__init__()
        self.backbone, self.scheduler = self.network[0], scheduler

    def configure_optimizers(self) -> Any:
        optimizer = SGD((each for each in self.parameters() if each.requires_grad), lr=0.1, momentum=0.9)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": self.scheduler(optimizer), "interval": "step"}}


@pytest.mark.parametrize(
    "make",
    [
        lambda optimizer: OneCycleLR(optimizer, 0.2, 100),
        lambda optimizer: CyclicLR(optimizer, 0.1, 0.2),
        lambda optimizer: LambdaLR(optimizer, lambda step: 0.9**step),
    ],
)
def test_a_scheduler_that_keeps_a_rate_for_each_group(make: Callable[[Any], Any]) -> None:
    """Fails in torch once a callback has added a group: an error that names both; others scale each group's rate."""
    callback = BackboneFinetuning(unfreeze_backbone_at_epoch=1)
    quiet(max_epochs=1, callbacks=callback).fit(Unfrozen(make), loader())
    with pytest.raises(
        ConfigurationError, match=r"(OneCycle|Cyclic|Lambda)LR has no rates for 1 parameter group.*BackboneFinetuning"
    ) as caught:
        quiet(max_epochs=2, callbacks=callback).fit(Unfrozen(make), loader())
    assert isinstance(caught.value.__cause__, KeyError | ValueError)
    trainer = quiet(max_epochs=2, callbacks=callback)
    trainer.fit(Unfrozen(lambda optimizer: StepLR(optimizer, 14, 0.5)), loader())
    assert [round(group["lr"], 6) for group in trainer.optimizers[0].param_groups] == [0.05, 0.005]


def test_an_error_of_a_scheduler_is_its_own() -> None:
    """As long as its optimizer has the groups that it had."""
    with pytest.raises(KeyError, match="a key of mine"):
        quiet(max_epochs=1).fit(Unfrozen(lambda optimizer: Broken(optimizer)), loader())


class Broken(LambdaLR):
    def __init__(self, optimizer: Any) -> None:
        super().__init__(optimizer, lambda step: 1.0)

    def step(self, epoch: int | None = None) -> None:
        if self.last_epoch >= 0:
            raise KeyError("a key of mine")
        super().step(epoch)


class Estimates(Regression):
    def configure_optimizers(self) -> Any:
        self.estimated = self.trainer.estimated_stepping_batches
        return super().configure_optimizers()


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ({"max_epochs": 3}, 21),
        ({"max_epochs": 3, "accumulate_grad_batches": 3}, 9),
        ({"max_epochs": 3, "max_steps": 5}, 5),
        ({"max_epochs": 3, "limit_train_batches": 2}, 6),
        ({"max_steps": 4}, 4),
    ],
)
def test_the_number_of_steps_is_known_for_schedules(settings: dict[str, Any], steps: int) -> None:
    """In ``configure_optimizers`` already; it is how many there are."""
    module = Estimates()
    trainer = quiet(**settings)
    trainer.fit(module, loader())
    assert (module.estimated, trainer.global_step) == (steps, steps)
