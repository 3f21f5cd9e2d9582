"""Each callback by itself, against a count, a formula or plain torch."""

from __future__ import annotations

import copy
import logging
import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from core import Callback, Trainer
from core.callbacks import (
    BackboneFinetuning,
    BaseFinetuning,
    DeviceStatsMonitor,
    EarlyStopping,
    EMAWeightAveraging,
    GradientAccumulationScheduler,
    LambdaCallback,
    LearningRateMonitor,
    ModelCheckpoint,
    OnExceptionCheckpoint,
    Timer,
    WeightAveraging,
)
from core.errors import ConfigurationError, WrongTypeError

from .regression import Regression, assert_same, loader, quiet


class Log:
    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self.rows.append((step, metrics))


class Decaying(Regression):
    """Adam with two groups, whose rate halves after each epoch or step."""

    interval = "epoch"

    def configure_optimizers(self) -> Any:
        first, last = self.network[0], self.network[3]
        groups: list[dict[str, Any]] = [
            {"params": first.parameters()},
            {"params": last.parameters(), "lr": 0.2, "weight_decay": 0.5},
        ]
        optimizer = torch.optim.Adam(groups, lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": self.interval}}


# -- learning rates ------------------------------------------------------------------------------------------------


def rates(module: Regression, monitor: LearningRateMonitor, **settings: Any) -> list[tuple[int, dict[str, float]]]:
    log = Log()
    quiet(**{"max_epochs": 2, "callbacks": monitor, "logger": log, "log_every_n_steps": 3, **settings}).fit(
        module, loader()
    )
    return log.rows


@pytest.mark.parametrize("strategy", ["auto", "ddp_sharded"])
def test_learning_rates_of_epochs(strategy: str) -> None:
    """By group, as the scheduler's interval says; ``trainer.callback_metrics`` has them too."""

    class Knows(Decaying):
        def on_train_epoch_end(self) -> None:
            self.known = {name: float(value) for name, value in self.trainer.callback_metrics.items()}

    monitor, module = LearningRateMonitor(), Knows()
    assert rates(module, monitor, strategy=strategy) == [
        (0, {"lr-Adam/pg1": 0.1, "lr-Adam/pg2": 0.2}),
        (7, {"lr-Adam/pg1": 0.05, "lr-Adam/pg2": 0.1}),
    ]
    assert monitor.lrs == {"lr-Adam/pg1": [0.1, 0.05], "lr-Adam/pg2": [0.2, 0.1]}
    assert {**module.known, "error": 0} == pytest.approx({"lr-Adam/pg1": 0.05, "lr-Adam/pg2": 0.1, "error": 0})


def test_learning_rates_of_steps() -> None:
    """The rate of each logged step is the one that it was taken with."""

    class ByStep(Decaying):
        interval = "step"

    found = rates(ByStep(), LearningRateMonitor(), max_epochs=1)
    assert found == [
        (2, {"lr-Adam/pg1": 0.025, "lr-Adam/pg2": 0.05}),
        (5, {"lr-Adam/pg1": 0.1 / 32, "lr-Adam/pg2": 0.2 / 32}),
    ]
    (only, _) = rates(Decaying(), LearningRateMonitor("step"), max_epochs=1)
    assert only == (2, {"lr-Adam/pg1": 0.1, "lr-Adam/pg2": 0.2})


def test_the_learning_rates_of_steps_that_are_logged_since_the_run_is_to_stop() -> None:
    """All of them, as their metrics are."""

    class Stops(Regression):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.trainer.should_stop = self.trainer.should_stop or batch_idx == 3
            return super().training_step(batch, batch_idx)

    found = rates(Stops(), LearningRateMonitor("step"), max_epochs=1, min_steps=7)
    assert found == [(step, {"lr-SGD": 0.05}) for step in (2, 4, 5, 6)]


@pytest.mark.parametrize("strategy", ["auto", "ddp_sharded"])
def test_momentum_and_weight_decay(strategy: str) -> None:
    """Under the rate's name."""
    monitor = LearningRateMonitor("epoch", log_momentum=True, log_weight_decay=True)
    (row,) = rates(Regression(), monitor, max_epochs=1, strategy=strategy)
    assert monitor.last_momentum_values == {"lr-SGD-momentum": 0.9}
    assert monitor.last_weight_decay_values == {"lr-SGD-weight_decay": 0.0}
    assert row == (0, {"lr-SGD": 0.05, "lr-SGD-momentum": 0.9, "lr-SGD-weight_decay": 0.0})


def test_learning_rates_need_a_logger() -> None:
    """And a valid interval."""
    with pytest.raises(ConfigurationError, match="the trainer has no logger"):
        quiet(max_epochs=1, callbacks=LearningRateMonitor()).fit(Regression(), loader())
    with pytest.raises(ConfigurationError, match="logging_interval='batch'"):
        LearningRateMonitor("batch")


def test_a_prefix_of_learning_rates() -> None:
    """It stands before all that is logged, in the loggers and in the monitor's own records."""
    monitor = LearningRateMonitor("epoch", log_momentum=True, log_key_prefix="optimizer/")
    assert rates(Regression(), monitor, max_epochs=1) == [
        (0, {"optimizer/lr-SGD": 0.05, "optimizer/lr-SGD-momentum": 0.9})
    ]
    assert (monitor.lrs, monitor.last_momentum_values) == (
        {"optimizer/lr-SGD": [0.05]},
        {"optimizer/lr-SGD-momentum": 0.9},
    )


# -- time ----------------------------------------------------------------------------------------------------------


def test_a_timer_ends_the_fit(caplog: pytest.LogCaptureFixture) -> None:
    """After the running step, or after the running epoch."""
    caplog.set_level(logging.INFO)

    class Slow(Regression):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            time.sleep(0.02)
            return super().training_step(batch, batch_idx)

    timer = Timer(timedelta(seconds=0.05))
    trainer = quiet(max_epochs=5, callbacks=timer)
    trainer.fit(Slow(), loader())
    assert 1 <= trainer.global_step < 7
    assert timer.time_elapsed() >= 0.05
    assert timer.time_remaining() is not None
    assert "Timer: the run has taken" in caplog.text
    trainer = quiet(max_epochs=5, callbacks=Timer({"microseconds": 1}, interval="epoch"))
    trainer.fit(Slow(), loader())
    assert trainer.global_step == 7


def test_a_timer_counts_the_time_of_the_resumed_run() -> None:
    """Its state is the time that was taken."""
    timer = Timer("00:00:01:00")
    timer.load_state_dict({"time_elapsed": {"train": 70.0}})
    assert timer.time_elapsed() == 70.0
    assert timer.time_remaining() == -10.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"duration": "1:00"}, "duration='1:00': must be a datetime.timedelta, a text DD:HH:MM:SS"),
        ({"duration": {"weeks": 1, "minute": 2}}, "duration=.*minute"),
        ({"duration": 5}, "duration=5"),
        ({"interval": "batch"}, "interval='batch'"),
    ],
)
def test_timers_arguments(options: dict[str, Any], message: str) -> None:
    """Checked when they are given."""
    with pytest.raises(ConfigurationError, match=message):
        Timer(**options)


# -- functions -----------------------------------------------------------------------------------------------------


def test_functions_as_hooks() -> None:
    """Each is called at its hook, with the hook's arguments; no other hook is bound."""
    calls: list[Any] = []
    made = LambdaCallback(
        setup=lambda trainer, module, stage: calls.append(stage),
        on_train_batch_end=lambda trainer, module, outputs, batch, batch_idx: calls.append(batch_idx),
        on_train_end=None,
    )
    quiet(max_epochs=1, limit_train_batches=2, callbacks=made).fit(Regression(), loader())
    assert calls == ["fit", 0, 1]
    with pytest.raises(
        ConfigurationError, match=r"'on_train_batch_ends' is not a hook. Did you mean 'on_train_batch_end'"
    ):
        LambdaCallback(on_train_batch_ends=print)
    with pytest.raises(WrongTypeError, match="on_train_end=3"):
        LambdaCallback(on_train_end=3)  # type: ignore[arg-type]


# -- devices -------------------------------------------------------------------------------------------------------


def test_device_stats() -> None:
    """Those of the accelerator, as often as metrics are logged."""
    log = Log()
    quiet(max_epochs=1, callbacks=DeviceStatsMonitor(), logger=log, log_every_n_steps=3).fit(Regression(), loader())
    assert [step for step, _ in log.rows] == [2, 5]
    assert log.rows[0][1]
    assert all(name.startswith("DeviceStatsMonitor.on_train_batch_end/") for name in log.rows[0][1])
    with pytest.raises(ConfigurationError, match="DeviceStatsMonitor: the trainer has no logger"):
        quiet(max_epochs=1, callbacks=DeviceStatsMonitor()).fit(Regression(), loader())


# -- exceptions ----------------------------------------------------------------------------------------------------


def test_a_checkpoint_when_the_run_fails(tmp_path: Path) -> None:
    """Also if it is Ctrl+C; the run goes on from it and ends as if nothing had happened."""

    class Interrupted(Callback):
        def on_train_batch_end(self, trainer: Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx == 3:
                raise KeyboardInterrupt

    torch.manual_seed(0)
    expected = Regression()
    module, resumed = copy.deepcopy(expected), copy.deepcopy(expected)
    torch.manual_seed(1)
    quiet(max_epochs=2).fit(expected, loader(shuffle=True))
    torch.manual_seed(1)
    saving = OnExceptionCheckpoint(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        quiet(max_epochs=2, callbacks=[saving, Interrupted()], enable_checkpointing=True).fit(
            module, loader(shuffle=True)
        )
    assert os.listdir(tmp_path) == ["on_exception.ckpt"]
    quiet(max_epochs=2).fit(resumed, loader(shuffle=True), ckpt_path=saving.ckpt_path)
    assert_same(resumed, expected)


# -- averages ------------------------------------------------------------------------------------------------------


class Normed(Regression):
    def __init__(self) -> None:
        super().__init__()
        self.network.insert(1, nn.BatchNorm1d(16))


def test_an_exponential_average_is_torchs(tmp_path: Path) -> None:
    """After ``fit`` the module has it; validation used it; the checkpoint has it."""
    torch.manual_seed(0)
    module = Normed()
    average = AveragedModel(copy.deepcopy(module), use_buffers=True, multi_avg_fn=get_ema_multi_avg_fn(0.8))  # type: ignore[no-untyped-call]
    evaluated: list[float] = []

    class ByHand(Callback):
        def on_train_batch_end(self, trainer: Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            average.update_parameters(module)

        def on_validation_end(self, trainer: Trainer, module: Any) -> None:
            evaluated.append(float(trainer.callback_metrics["error"]))
            inner: Any = average.module
            (mine,) = quiet().validate(inner, loader())
            evaluated.append(mine["error"])

    ema, saving = EMAWeightAveraging(decay=0.8), ModelCheckpoint(tmp_path)
    trainer = quiet(max_epochs=2, callbacks=[ema, ByHand(), saving], enable_checkpointing=True, num_sanity_val_steps=0)
    trainer.fit(module, loader(), loader())
    assert evaluated[0] == pytest.approx(evaluated[1], abs=1e-9)
    assert_same(module, average.module)
    other = Normed()
    assert quiet().validate(other, loader(), ckpt_path=saving.best_model_path) == quiet().validate(module, loader())


def test_which_steps_are_averaged() -> None:
    """As the arguments say; by default each counts the same."""
    ema = EMAWeightAveraging(update_every_n_steps=2, update_starting_at_step=3, update_starting_at_epoch=1)
    assert [step for step in range(8) if ema.should_update(step_idx=step)] == [4, 6]
    assert [epoch for epoch in range(3) if ema.should_update(epoch_idx=epoch)] == [1, 2]
    torch.manual_seed(0)
    module, seen = Regression(), list[torch.Tensor]()

    class Look(Callback):
        def on_train_batch_end(self, trainer: Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            seen.append(module.network[0].weight.data.clone())

    quiet(max_epochs=1, callbacks=[WeightAveraging(), Look()]).fit(module, loader())
    torch.testing.assert_close(module.network[0].weight.data, torch.stack(seen).mean(0))
    with pytest.raises(ConfigurationError, match="decay=2"):
        EMAWeightAveraging(decay=2)


# -- fine-tuning ---------------------------------------------------------------------------------------------------


class Tuned(Regression):
    backbone: nn.Sequential

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU())
        self.network = nn.Sequential(self.backbone, nn.Linear(16, 1))

    def configure_optimizers(self) -> Any:
        trainable = [parameter for parameter in self.parameters() if parameter.requires_grad]
        return torch.optim.Adam(trainable, lr=0.01)


def test_a_backbone_is_trained_from_an_epoch_on() -> None:
    """Frozen until then; then in its own group, whose rate grows to that of the rest."""
    found: list[tuple[bool, list[float]]] = []

    class Look(Callback):
        def on_train_epoch_end(self, trainer: Trainer, module: Any) -> None:
            (optimizer,) = trainer.optimizers
            moved = not torch.equal(module.backbone[0].weight, start)
            found.append((moved, [round(group["lr"], 6) for group in optimizer.param_groups]))

    module = Tuned()
    layer: Any = module.backbone[0]
    start = layer.weight.detach().clone()
    callback = BackboneFinetuning(unfreeze_backbone_at_epoch=2, lambda_func=lambda epoch: 4.0)
    quiet(max_epochs=5, callbacks=[callback, Look()]).fit(module, loader())
    assert found == [
        (False, [0.01]),
        (False, [0.01]),
        (True, [0.01, 0.001]),
        (True, [0.01, 0.004]),
        (True, [0.01, 0.01]),
    ]
    with pytest.raises(ConfigurationError, match="Regression has no module 'backbone'"):
        quiet(max_epochs=1, callbacks=BackboneFinetuning()).fit(Regression(), loader())


def test_freezing_parts() -> None:
    """Batch norm is left trainable unless that is asked for."""
    module = Tuned()
    BaseFinetuning.freeze(module.backbone)
    assert [parameter.requires_grad for parameter in module.backbone.parameters()] == [False, False, True, True]
    BaseFinetuning.freeze(module.backbone, train_bn=False)
    assert not any(parameter.requires_grad for parameter in module.backbone.parameters())
    assert len(list(BaseFinetuning.filter_params(module.backbone, requires_grad=False))) == 4
    BaseFinetuning.make_trainable([module.backbone])
    assert all(parameter.requires_grad for parameter in module.parameters())


def test_accumulation_from_an_epoch_on(tmp_path: Path) -> None:
    """Seven batches are 7, then 4, then 3 steps; the weights are those of fits with that number, one after another."""
    schedule = GradientAccumulationScheduler({1: 2, 2: 3})
    steps: list[int] = []
    estimated: list[float] = []

    class Count(Callback):
        def on_train_epoch_end(self, trainer: Trainer, module: Any) -> None:
            steps.append(trainer.global_step)
            estimated.append(trainer.estimated_stepping_batches)

    torch.manual_seed(0)
    module = Regression()
    expected, resumed = copy.deepcopy(module), copy.deepcopy(module)
    torch.manual_seed(1)
    quiet(max_epochs=3, callbacks=[schedule, Count(), Keeps(tmp_path)]).fit(module, loader())
    assert steps == [7, 11, 14]
    assert estimated == [14, 14, 14]
    torch.manual_seed(1)
    for epoch in range(3):
        trainer = quiet(max_epochs=epoch + 1, accumulate_grad_batches=epoch + 1)
        trainer.fit(expected, loader(), ckpt_path=tmp_path / "by hand" if epoch else None)
        trainer.save_checkpoint(tmp_path / "by hand")
    assert_same(module, expected)
    within = quiet(max_epochs=3, callbacks=GradientAccumulationScheduler({1: 2, 2: 3}))
    within.fit(resumed, loader(), ckpt_path=tmp_path / "within")
    assert_same(resumed, expected)
    for wrong in ({}, {-1: 2}, {1: 0}, {1: 1.5}, 3):
        with pytest.raises(ConfigurationError, match="scheduling="):
            GradientAccumulationScheduler(wrong)  # type: ignore[arg-type]
    for given, scheduling in ((5, {1: 2, 2: 3}), (2, {1: 2})):
        other = GradientAccumulationScheduler(scheduling)
        with pytest.raises(ConfigurationError, match=f"accumulate_grad_batches={given}, and there is a Gradient"):
            quiet(max_epochs=1, accumulate_grad_batches=given, callbacks=other).fit(Regression(), loader())


def test_accumulation_of_a_module_that_steps_by_itself() -> None:
    """It is refused before the first batch."""

    class Manual(Regression):
        automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            raise AssertionError("is not called")

    trainer = quiet(max_epochs=1, callbacks=GradientAccumulationScheduler({0: 2}))
    with pytest.raises(ConfigurationError, match=r"GradientAccumulationScheduler: Manual has .*Remove the callback"):
        trainer.fit(Manual(), loader())


def test_accumulation_from_the_beginning() -> None:
    """Also where epoch 0 has a number of its own, and in a second fit of the same Trainer."""
    trainer = quiet(max_epochs=2, callbacks=GradientAccumulationScheduler({0: 2, 1: 7}))
    for _ in range(2):
        trainer.fit(Regression(), loader())
        assert trainer.global_step == 4 + 1


class Keeps(Callback):
    """Saves in the middle of epoch 2."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_batch_end(self, trainer: Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.current_epoch == 2 and batch_idx == 3:
            trainer.save_checkpoint(self.path / "within")


# -- resuming ------------------------------------------------------------------------------------------------------


class Score(Tuned):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val", self.loss(batch))


RESUMABLE: dict[str, Callable[[Path], Callback]] = {
    "ModelCheckpoint": lambda path: ModelCheckpoint(path / "own", monitor="val", save_top_k=2, save_last=True),
    "EarlyStopping": lambda path: EarlyStopping("val", patience=9),
    "LearningRateMonitor": lambda path: LearningRateMonitor(),
    "EMAWeightAveraging": lambda path: EMAWeightAveraging(decay=0.9),
    "WeightAveraging": lambda path: WeightAveraging(),
    "BackboneFinetuning": lambda path: BackboneFinetuning(unfreeze_backbone_at_epoch=1),
    "BackboneFinetuning_train_bn": lambda path: BackboneFinetuning(unfreeze_backbone_at_epoch=1, train_bn=False),
}


class Breaks(Callback):
    """Saves in the middle of epoch 2, and ends the run there."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_batch_end(self, trainer: Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.current_epoch == 2 and batch_idx == 3:
            trainer.save_checkpoint(self.path)
            raise KeyboardInterrupt


def without_paths(state: Any, root: Path) -> Any:
    if isinstance(state, dict):
        return {without_paths(key, root): without_paths(value, root) for key, value in state.items()}
    if isinstance(state, list):
        return [without_paths(item, root) for item in state]
    if isinstance(state, torch.Tensor):
        return state.tolist()
    return state.replace(str(root), "") if isinstance(state, str) else state


@pytest.mark.parametrize("name", RESUMABLE)
def test_a_resumed_callback_ends_as_an_uninterrupted_one(name: str, tmp_path: Path) -> None:
    """Broken off within an epoch: the same weights, bit for bit, and the same state."""
    results = []
    for broken in (False, True):
        root = tmp_path / str(broken)
        torch.manual_seed(0)
        module, callback = Score(), RESUMABLE[name](root)
        options: dict[str, Any] = {"max_epochs": 4, "logger": Log(), "enable_checkpointing": name == "ModelCheckpoint"}
        ckpt_path = None
        if broken:
            ckpt_path = root / "broken"
            with pytest.raises(KeyboardInterrupt):
                quiet(callbacks=[callback, Breaks(ckpt_path)], **options).fit(module, loader(shuffle=True), loader())
            torch.manual_seed(99)
            module, callback = Score(), RESUMABLE[name](root)
        quiet(callbacks=[callback], **options).fit(module, loader(shuffle=True), loader(), ckpt_path=ckpt_path)
        results.append((module, without_paths(callback.state_dict(), root)))
    (whole, expected), (resumed, state) = results
    assert_same(resumed, whole)
    assert state == expected
