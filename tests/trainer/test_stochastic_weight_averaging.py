"""Averages of weights, against plain loops with torch.optim.swa_utils."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn

from core import Trainer
from core.callbacks import (
    Callback,
    EMAWeightAveraging,
    LambdaCallback,
    ModelCheckpoint,
    StochasticWeightAveraging,
    WeightAveraging,
)
from core.errors import ConfigurationError, CoreError

from .regression import Regression, assert_same, loader, quiet

OPTIONS: dict[str, Any] = {"swa_lrs": 0.01, "swa_epoch_start": 3, "annealing_epochs": 2}


class Normalized(Regression):
    """With batch norm, and a scheduler of its own."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__()
        self.network[2] = nn.BatchNorm1d(16)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.9)]


def by_hand(epochs: int, strategy: str = "cos") -> tuple[Normalized, list[float]]:
    """As torch's documentation does it; returns the average and the learning rates of the epochs."""
    module = Normalized()
    [optimizer], [scheduler] = module.configure_optimizers()
    average = AveragedModel(module)
    swa: Any = None
    rates = []
    for epoch in range(epochs):
        if epoch == 2:
            swa = SWALR(optimizer, 0.01, anneal_epochs=2, anneal_strategy=strategy)  # type: ignore[arg-type]
        rates.append(optimizer.param_groups[0]["lr"])
        for batch in loader():
            optimizer.zero_grad()
            module.loss(batch).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        if epoch >= 2:
            average.update_parameters(module)
            swa.step()
        else:
            scheduler.step()
    averaged: Any = average.module if swa is not None else module
    if swa is not None:
        update_bn(loader(), averaged)
    return averaged, rates


class Rates(Callback):
    """Keeps the learning rate of each epoch."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        self.seen.append(trainer.optimizers[0].param_groups[0]["lr"])


@pytest.mark.parametrize(("epochs", "strategy"), [(5, "cos"), (5, "linear"), (2, "cos")])
def test_as_torch_s_documentation(epochs: int, strategy: str) -> None:
    """Average, learning rates and statistics of batches are those of the plain loop; before the start, nothing."""
    expected, rates = by_hand(epochs, strategy)
    module, seen = Normalized(), Rates()
    swa = StochasticWeightAveraging(**OPTIONS, annealing_strategy=strategy)
    trainer = quiet(max_epochs=epochs, callbacks=[swa, seen])
    trainer.fit(module, loader())
    for name, value in expected.state_dict().items():
        torch.testing.assert_close(module.state_dict()[name], value, msg=name)
    assert seen.seen == pytest.approx(rates)
    assert module.network[2].momentum == 0.1
    assert trainer.callback_metrics.keys() == {"loss", "loss_step", "loss_epoch"}


class Unscheduled(Normalized):
    """Without a scheduler, or with one that leaves the optimizer's step as it is."""

    plateau = False

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
        return (
            {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "error"}}
            if self.plateau
            else optimizer
        )


@pytest.mark.parametrize("plateau", [False, True])
@pytest.mark.parametrize("manual", [False, True])
@pytest.mark.filterwarnings("error")
def test_the_schedule_sees_the_optimizer_s_steps(plateau: bool, manual: bool) -> None:
    """torch does not warn that the schedule is stepped before the optimizer, also where no other scheduler is."""

    class ByHand(Unscheduled):
        automatic_optimization = False

        def __init__(self) -> None:
            super().__init__()
            self.network[2] = nn.Identity()

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(self.loss(batch))
            optimizer.step()

    module = ByHand() if manual else Unscheduled()
    module.plateau = plateau and not manual
    swa = StochasticWeightAveraging(0.01, swa_epoch_start=2)
    quiet(max_epochs=4, callbacks=swa).fit(module, loader(), loader())


def test_a_schedule_without_steps_of_the_optimizer() -> None:
    """torch's warning comes where it is true."""

    class Never(Unscheduled):
        automatic_optimization = False

        def __init__(self) -> None:
            super().__init__()
            self.network[2] = nn.Identity()

        def training_step(self, batch: Any, batch_idx: int) -> None:
            self.loss(batch)

    with pytest.warns(UserWarning, match=r"before `optimizer\.step"):
        quiet(max_epochs=4, callbacks=StochasticWeightAveraging(0.01, swa_epoch_start=2)).fit(Never(), loader())


@pytest.mark.parametrize("stop", [1, 2, 3, 4])
def test_resumed(stop: int, tmp_path: Path) -> None:
    """After any epoch, bit for bit the uninterrupted run; checkpoints have the weights that are trained."""
    whole = Normalized()
    trainer = quiet(max_epochs=5, callbacks=StochasticWeightAveraging(**OPTIONS))
    trainer.fit(whole, loader(), loader())

    class Stopping(Callback):
        def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
            trainer.should_stop = trainer.current_epoch + 1 == stop

    class Keeps(ModelCheckpoint):
        def on_train_end(self, trainer: Any, module: Any) -> None:
            """Write nothing after the last epoch."""

    first = Normalized()
    keeps = Keeps(dirpath=tmp_path, filename="{epoch}", save_top_k=-1)
    quiet(
        max_epochs=5,
        enable_checkpointing=True,
        callbacks=[StochasticWeightAveraging(**OPTIONS), Stopping(), keeps],
    ).fit(first, loader(), loader())
    second, path = Normalized(), str(next(tmp_path.glob(f"epoch={stop - 1}*")))
    quiet(max_epochs=5, callbacks=StochasticWeightAveraging(**OPTIONS)).fit(second, loader(), loader(), ckpt_path=path)
    assert_same(whole, second)


@pytest.mark.parametrize("step", [9, 14, 21])
def test_resumed_within_an_epoch(step: int, tmp_path: Path) -> None:
    """Likewise, and without torch's warning, also from a checkpoint of an epoch's last step, of 7."""
    options: dict[str, Any] = {"max_epochs": 5, "enable_checkpointing": True}
    keeps = ModelCheckpoint(dirpath=tmp_path, filename="{step}", every_n_train_steps=1, save_top_k=-1)

    class Unscheduled(Normalized):
        def configure_optimizers(self) -> Any:
            return super().configure_optimizers()[0]

    whole, second = Unscheduled(), Unscheduled()
    quiet(callbacks=[StochasticWeightAveraging(**OPTIONS), keeps], **options).fit(whole, loader())
    quiet(max_epochs=5, callbacks=StochasticWeightAveraging(**OPTIONS)).fit(
        second, loader(), ckpt_path=tmp_path / f"step={step}.ckpt"
    )
    assert_same(whole, second)


def test_a_run_of_two_processes_that_ends_on_one(tmp_path: Path) -> None:
    """Within an epoch, with no step left: the pass for the statistics leaves the position as it was loaded."""
    options: dict[str, Any] = {"max_steps": 3, "enable_checkpointing": True}  # of two in an epoch
    average: dict[str, Any] = {"swa_lrs": 0.01, "swa_epoch_start": 1}
    keeps = ModelCheckpoint(dirpath=tmp_path, filename="{step}", every_n_train_steps=1, save_top_k=-1)
    callbacks = [StochasticWeightAveraging(**average), keeps]
    quiet(callbacks=callbacks, devices=2, strategy="ddp_fork", **options).fit(Normalized(), loader(20))
    last = quiet(max_steps=3, callbacks=StochasticWeightAveraging(**average))
    last.fit(module := Normalized(), loader(20), ckpt_path=tmp_path / "step=3.ckpt")
    assert last.global_step == 3
    assert all(bool(value.isfinite().all()) for value in module.state_dict().values())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"swa_lrs": 0}, "swa_lrs=0: must be a number > 0"),
        ({"swa_lrs": "0.1"}, "swa_lrs='0.1'"),
        ({"swa_lrs": [0.1, -1]}, "swa_lrs="),
        ({"swa_epoch_start": 1.5}, "swa_epoch_start=1.5"),
        ({"swa_epoch_start": 0}, "swa_epoch_start=0"),
        ({"annealing_strategy": "exp"}, "annealing_strategy='exp'"),
        ({"annealing_epochs": -1}, "annealing_epochs=-1"),
    ],
    ids=str,
)
def test_arguments(options: dict[str, Any], message: str) -> None:
    """What is out of range is refused by name."""
    with pytest.raises(CoreError, match=message):
        StochasticWeightAveraging(**{"swa_lrs": 0.01, **options})


def test_runs_that_cannot() -> None:
    """A fraction of no limit, and several optimizers."""
    with pytest.raises(ConfigurationError, match=r"swa_epoch_start=0\.8: is a fraction of max_epochs"):
        quiet(max_steps=3, callbacks=StochasticWeightAveraging(0.01)).fit(Normalized(), loader())

    class Two(Normalized):
        automatic_optimization = False

        def configure_optimizers(self) -> Any:
            return [torch.optim.SGD(self.parameters(), lr=0.1) for _ in range(2)]

    with pytest.raises(ConfigurationError, match="the module has 2 optimizers"):
        quiet(max_epochs=1, callbacks=StochasticWeightAveraging(0.01)).fit(Two(), loader())

    class ByHand(Unscheduled):
        automatic_optimization = False

    with pytest.raises(ConfigurationError, match=r"ByHand has batch norm layers.*EMAWeightAveraging"):
        quiet(max_epochs=2, callbacks=StochasticWeightAveraging(0.01)).fit(ByHand(), loader())


@pytest.mark.parametrize(
    "averaging", [EMAWeightAveraging(decay=0.5), StochasticWeightAveraging(0.01, swa_epoch_start=1)], ids=["EMA", "SWA"]
)
def test_an_average_without_the_trained_weights(
    averaging: Callback, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A checkpoint from after the end of a fit has only the average: a fit that is resumed from it says so."""
    during, after, module = tmp_path / "during", tmp_path / "after", Regression()
    trainer = quiet(
        max_epochs=2,
        callbacks=[averaging, LambdaCallback(on_train_epoch_end=lambda *_: trainer.save_checkpoint(during))],
    )
    trainer.fit(module, loader())
    trainer.save_checkpoint(after)
    told = []
    for path in (during, after):
        caplog.clear()
        quiet(max_epochs=3, callbacks=[averaging]).fit(Regression(), loader(), ckpt_path=path)
        told.append("was written after the end of its fit" in caplog.text)
    assert told == [False, True]


class Observed(Regression):
    """With a range for each input, as observers for quantization have it, and a buffer that grows in each step."""

    high: torch.Tensor
    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("high", torch.empty(0))
        self.register_buffer("seen", torch.zeros(1))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.high.resize_(6).copy_(batch[0].amax(0))
        self.seen = torch.cat((self.seen, torch.ones(1)))
        return self.loss(batch)


@pytest.mark.parametrize("use_buffers", [True, False])
def test_buffers_get_their_size_in_a_step(use_buffers: bool) -> None:
    """The average has them in their new size; validation and the end of the fit use it."""
    torch.manual_seed(0)
    module = Observed()
    average = AveragedModel(copy.deepcopy(module.network))
    sizes = []

    class ByHand(WeightAveraging):
        def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
            return step_idx is not None and step_idx % 3 == 0

        def on_train_batch_end(self, trainer: Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            super().on_train_batch_end(trainer, module, outputs, batch, batch_idx)
            if batch_idx % 3 == 0:
                average.update_parameters(module.network)

        def on_validation_end(self, trainer: Trainer, module: Any) -> None:
            sizes.append(len(module.seen))

    module_at = LambdaCallback(on_validation_start=lambda trainer, module: sizes.append(len(module.seen)))
    quiet(max_epochs=1, val_check_interval=3, callbacks=[ByHand(use_buffers=use_buffers), module_at]).fit(
        module, loader(), loader()
    )
    assert sizes == [4, 4, 7, 7]
    assert_same(module.network, average.module)
    assert (len(module.high), len(module.seen)) == (6, 8)
