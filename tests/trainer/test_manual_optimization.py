"""A Module that calls backward and steps its optimizers itself: bit for bit the loop written by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam

from core import Callback, Module, Trainer
from core.callbacks import (
    DeviceStatsMonitor,
    EMAWeightAveraging,
    LearningRateMonitor,
    ModelCheckpoint,
    ThroughputMonitor,
)
from core.errors import ConfigurationError, CoreError
from core.strategies import SingleDeviceStrategy

from .gan import GAN, real_rows, train_by_hand
from .regression import Regression, assert_same, loader, network, quiet


@pytest.mark.parametrize(
    ("options", "by_hand"),
    [
        ({}, {}),
        ({"accumulate": 2}, {"accumulate": 2}),
        ({"clip": 0.01}, {"clip": 0.01}),
    ],
)
def test_a_gan_is_the_loop_by_hand(options: dict[str, Any], by_hand: dict[str, Any]) -> None:
    """Two optimizers, a scheduler, toggling, accumulation and clipping by the user."""
    module = GAN(**options)
    trainer = quiet(max_epochs=3)
    trainer.fit(module, real_rows(6))
    expected = train_by_hand(3, 6, **by_hand)
    for name, value in module.state_dict().items():
        assert torch.equal(value, expected[name]), name
    assert trainer.global_step == 3 * 6 * 2 // options.get("accumulate", 1)


class Rows:
    """A logger that keeps what it gets."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self.rows.append((step, metrics))

    def steps_of(self, start: str) -> list[int]:
        return [step for step, metrics in self.rows if any(name.startswith(start) for name in metrics)]


class LogsLoss(GAN):
    def training_step(self, batch: Any, batch_idx: int) -> None:
        super().training_step(batch, batch_idx)
        self.log("loss", 1.0)


def test_what_is_due_at_a_step_within_a_batch_is_done_after_the_batch(tmp_path: Path) -> None:
    """Each batch takes two steps, so every second multiple of an odd number is a step within a batch."""
    log, learning_rates = Rows(), LearningRateMonitor("step")
    saving = ModelCheckpoint(tmp_path, "{step}", save_top_k=-1, every_n_train_steps=5)
    quiet(
        max_epochs=2,
        callbacks=[saving, learning_rates, DeviceStatsMonitor(), ThroughputMonitor(len)],
        enable_checkpointing=True,
        logger=log,
        log_every_n_steps=5,
    ).fit(LogsLoss(), real_rows(6))
    assert sorted(int(path.stem.removeprefix("step=")) for path in tmp_path.iterdir()) == [6, 10, 16, 20]
    assert [log.steps_of(name) for name in ("loss", "DeviceStatsMonitor", "train/")] == [[5, 9, 15, 19]] * 3
    assert log.steps_of("lr-Adam") == [4, 10, 14, 20]


@pytest.mark.parametrize("every", [2, 3])
def test_an_average_takes_the_weights_of_a_batch_of_several_steps(every: int) -> None:
    """Steps 0, 2, 4, ... are the first of each batch, and 0, 3, 6, ... are in two batches of three."""
    expected = list[torch.Tensor]()

    class Look(Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            steps = range(trainer.global_step - 2, trainer.global_step)
            if any(step % every == 0 for step in steps):
                now = module.generator[0].weight.data.clone()
                expected.append(expected[-1] * 0.75 + now * 0.25 if expected else now)

    module = GAN()
    ema = EMAWeightAveraging(decay=0.75, update_every_n_steps=every)
    quiet(max_epochs=1, callbacks=[Look(), ema]).fit(module, real_rows(6))
    assert len(expected) == {2: 6, 3: 4}[every]
    torch.testing.assert_close(module.generator[0].weight.data, expected[-1])


class StepsLater(Regression):
    """Takes the step of a batch in the hook after it."""

    automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return {"outputs": self(batch[0])}

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(self.loss(batch))
        optimizer.step()
        self.log("loss", 1.0)


def test_a_step_in_the_hook_after_a_batch_counts(tmp_path: Path) -> None:
    """For checkpoints at once, and for the loggers with the next batch."""
    log, saving = Rows(), ModelCheckpoint(tmp_path, "{step}", save_top_k=-1, every_n_train_steps=3)
    options: dict[str, Any] = {"enable_checkpointing": True, "logger": log, "log_every_n_steps": 3}
    quiet(max_epochs=1, callbacks=saving, **options).fit(StepsLater(), loader())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step=3.ckpt", "step=6.ckpt"]
    assert log.steps_of("loss") == [3, 6]


def test_max_steps_counts_the_steps_of_all_optimizers() -> None:
    """The fit ends after the batch in which they have reached it."""
    trainer = quiet(max_steps=7)
    trainer.fit(GAN(), real_rows(6))
    assert trainer.global_step == 8


class Looking(GAN):
    """Looks at its optimizers."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, Any] = {}

    def training_step(self, batch: Any, batch_idx: int) -> None:
        first, second = self.optimizers()
        plain_first, plain_second = self.optimizers(use_pl_optimizer=False)
        assert [isinstance(one, kind) for one, kind in ((first, Adam), (second, SGD))] == [True, True]
        assert first.optimizer is plain_first
        assert self.trainer.optimizers == [plain_first, plain_second]
        assert second.param_groups is plain_second.param_groups
        assert isinstance(self.lr_schedulers(), torch.optim.lr_scheduler.ExponentialLR)
        assert [config.scheduler for config in self.trainer.lr_scheduler_configs] == [self.lr_schedulers()]
        with second.toggle_model():
            self.seen["generator"] = [parameter.requires_grad for parameter in self.generator.parameters()]
            self.seen["discriminator"] = [parameter.requires_grad for parameter in self.discriminator.parameters()]
        with self.toggled_optimizer(first):
            assert [parameter.requires_grad for parameter in self.generator.parameters()] == [False] + [True] * 3
            assert not any(parameter.requires_grad for parameter in self.discriminator.parameters())
        self.seen["after"] = [parameter.requires_grad for parameter in self.parameters()]

    def on_train_epoch_end(self) -> None:
        """Nothing was stepped."""


def test_what_a_module_sees_of_its_optimizers() -> None:
    """Instances of the user's classes; toggling leaves parameters that were frozen before frozen."""
    module = Looking()
    module.generator[0].weight.requires_grad = False
    quiet(max_epochs=1, limit_train_batches=1).fit(module, real_rows(6))
    assert module.seen["generator"] == [False] * 4
    assert module.seen["discriminator"] == [True] * 4
    assert module.seen["after"] == [False] + [True] * 7


class OneOptimizer(Regression):
    """One optimizer, stepped by the module."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        loss = self.loss(batch)
        self.manual_backward(loss)
        optimizer.step()
        return {"any": loss, "mapping": 1}


@pytest.mark.parametrize("precision", ["32-true", "64-true", "bf16-mixed", "16-mixed"])
def test_one_optimizer_is_automatic_optimization(precision: str) -> None:
    """Written by hand, the Trainer's own step gives the same bits, under every precision."""
    trained = []
    for make in (Regression, OneOptimizer):
        torch.manual_seed(3)
        module = make()
        trainer = quiet(max_epochs=2, precision=precision)
        trainer.fit(module, loader())
        assert trainer.global_step == 14
        trained.append(module.state_dict())
    for name, value in trained[0].items():
        assert torch.equal(value, trained[1][name]), name


class Scaled(GAN):
    """Reads a gradient in the hook before each step."""

    def __init__(self) -> None:
        super().__init__(clip=0.01)
        self.norms: list[float] = []

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        self.norms.append(float(torch.nn.utils.get_total_norm(gradients)))


def test_scaled_gradients_are_unscaled_for_clipping_and_hooks() -> None:
    """16-mixed multiplies the loss by 65536; what is clipped and seen is not."""
    module, plain = Scaled(), Scaled()
    quiet(max_epochs=1, precision="16-mixed").fit(module, real_rows(6))
    quiet(max_epochs=1).fit(plain, real_rows(6))
    assert len(module.norms) == 12
    assert module.norms == pytest.approx(plain.norms, rel=0.05)
    assert max(module.norms[::2]) <= 0.01 * 1.0001
    torch.testing.assert_close(module.state_dict(), plain.state_dict(), rtol=0.02, atol=2e-3)


class Noting(Callback):
    """Notes the hooks around each backward and step."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def on_before_backward(self, trainer: Trainer, module: Module, loss: Tensor) -> None:
        assert loss.requires_grad
        self.calls.append("before backward")

    def on_after_backward(self, trainer: Trainer, module: Module) -> None:
        self.calls.append("after backward")

    def on_before_optimizer_step(self, trainer: Trainer, module: Module, optimizer: Any) -> None:
        self.calls.append(f"before step of {type(optimizer).__name__}")

    def on_train_batch_end(self, trainer: Trainer, module: Module, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.calls.append(f"end {outputs}")


def test_the_hooks_of_a_manual_step() -> None:
    """Around each backward and before each step, as they come."""
    noting = Noting()
    quiet(max_epochs=1, limit_train_batches=1, callbacks=noting).fit(GAN(), real_rows(6))
    backward = ["before backward", "after backward"]
    steps = ["before step of Adam", "before step of SGD"]
    assert noting.calls == [*backward, steps[0], *backward, *backward, steps[1], "end None"]


def test_what_a_manual_step_returns_is_its_output() -> None:
    """A mapping without a loss too, detached."""
    noting = Noting()
    quiet(max_epochs=1, limit_train_batches=1, callbacks=noting).fit(OneOptimizer(), loader())
    assert noting.calls[-1].startswith("end {'any': tensor(")
    assert "grad_fn" not in noting.calls[-1]


class WithLBFGS(Regression):
    """Steps an optimizer with a closure."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.network = nn.Sequential(nn.Linear(6, 1))

    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.parameters(), lr=0.5)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = self.loss(batch)
            self.manual_backward(loss)
            return loss

        optimizer.step(closure)


def test_a_closure() -> None:
    """One step of LBFGS evaluates it several times, and counts once."""
    torch.manual_seed(0)
    module = WithLBFGS()
    torch.manual_seed(0)
    expected = WithLBFGS()
    trainer = quiet(max_epochs=1)
    trainer.fit(module, loader())
    assert trainer.global_step == 7
    optimizer = expected.configure_optimizers()
    for batch in loader():

        def closure(batch: Any = batch) -> Tensor:
            optimizer.zero_grad()
            loss = expected.loss(batch)
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        optimizer.step(closure)
    assert_same(module, expected)


class TwoSteps(Regression):
    """Takes two steps with a batch, the second of them perhaps with a closure."""

    def __init__(self, has_closure: bool) -> None:
        super().__init__()
        self.automatic_optimization, self.has_closure = False, has_closure
        self.network = nn.Sequential(nn.Linear(6, 1))

    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.parameters(), max_iter=3) if self.has_closure else SGD(self.parameters(), lr=0.1)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        self.two_steps(self.optimizers(), lambda: self.loss(batch), self.manual_backward)

    def two_steps(self, optimizer: Any, compute: Any, backward: Any) -> None:
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = compute()
            backward(loss)
            return loss

        for _ in range(2):
            if self.has_closure:
                optimizer.step(closure)
            else:
                closure()
                optimizer.step()


@pytest.mark.parametrize("has_closure", [False, True])
def test_each_loss_of_a_batch_has_the_weights_after_the_step_before(has_closure: bool) -> None:
    """Of mixed precision too: torch keeps the 16-bit weights until the autocast of the whole step ends."""
    module, expected = TwoSteps(has_closure), TwoSteps(has_closure)
    expected.load_state_dict(module.state_dict())
    quiet(max_epochs=1, precision="bf16-mixed").fit(module, loader())
    optimizer = expected.configure_optimizers()
    for batch in loader():

        def compute(batch: Any = batch) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return expected.loss(batch)

        expected.two_steps(optimizer, compute, Tensor.backward)
    assert_same(module, expected)


# -- resuming --------------------------------------------------------------------------------------------------------


class Saving(Callback):
    """Saves after a batch, and stops there."""

    def __init__(self, directory: Path, batch_idx: int) -> None:
        self.path, self.batch_idx = directory / "within", batch_idx

    def on_train_batch_end(self, trainer: Trainer, module: Module, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.current_epoch == 1 and batch_idx == self.batch_idx:
            trainer.save_checkpoint(self.path)
            trainer.should_stop = True


@pytest.mark.parametrize("batch_idx", [2, 3])
@pytest.mark.parametrize("options", [{}, {"toggles": False, "accumulate": 2}])
@pytest.mark.parametrize("precision", ["32-true", "16-mixed"])
def test_resuming_within_an_epoch(tmp_path: Path, options: dict[str, Any], batch_idx: int, precision: str) -> None:
    """All optimizers, schedulers and gradients that wait for a step: the resumed run is the uninterrupted one."""
    whole, resumed = GAN(**options), GAN(**options)
    quiet(max_epochs=3, precision=precision).fit(whole, real_rows(6))
    saving = Saving(tmp_path, batch_idx)
    quiet(max_epochs=3, precision=precision, callbacks=saving).fit(GAN(**options), real_rows(6))
    for parameter in resumed.parameters():
        nn.init.zeros_(parameter)
    trainer = quiet(max_epochs=3, precision=precision)
    trainer.fit(resumed, real_rows(6), ckpt_path=saving.path)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


class SavesAtTheEnd(Callback):
    """Of the epoch."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_epoch_end(self, trainer: Trainer, module: Module) -> None:
        trainer.save_checkpoint(self.path)


def test_a_checkpoint_of_other_optimizers_is_refused(tmp_path: Path) -> None:
    """Of more or of fewer than the module has."""
    paths = {"two": tmp_path / "two", "one": tmp_path / "one"}
    quiet(max_epochs=1, callbacks=SavesAtTheEnd(paths["two"])).fit(GAN(), real_rows(6))
    quiet(max_epochs=1, callbacks=SavesAtTheEnd(paths["one"])).fit(OneOptimizer(), loader())
    with pytest.raises(CoreError, match="has 1 optimizer"):
        quiet(max_epochs=2).fit(GAN(), real_rows(6), ckpt_path=paths["one"])
    with pytest.raises(CoreError, match="has 2 optimizer"):
        quiet(max_epochs=2).fit(OneOptimizer(), loader(), ckpt_path=paths["two"])


# -- refusals --------------------------------------------------------------------------------------------------------


class Compiled(SingleDeviceStrategy):
    """Runs whole steps only."""

    supports_custom_loop = False


class OverridesStep(OneOptimizer):
    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Never called."""

    def on_before_zero_grad(self, optimizer: Any) -> None:
        """Never called."""


class Scheduled(OneOptimizer):
    def configure_optimizers(self) -> Any:
        optimizer = SGD(self.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


@pytest.mark.parametrize(
    ("make", "settings", "said"),
    [
        (OneOptimizer, {"accumulate_grad_batches": 2}, r"accumulate_grad_batches=2.*every so many batches"),
        (OneOptimizer, {"gradient_clip_val": 0.5}, r"gradient_clip_val=0\.5.*self\.clip_gradients"),
        (OneOptimizer, {"strategy": Compiled(accelerator="cpu")}, r"does not support manual optimization"),
        (OverridesStep, {}, r"'optimizer_step'.*'on_before_zero_grad'.*Remove one of the two"),
        (Scheduled, {}, r"'interval'.*self\.lr_schedulers\(\)\.step\(\)"),
    ],
)
def test_what_has_no_effect_is_refused(make: type[Module], settings: dict[str, Any], said: str) -> None:
    """With what to do instead."""
    settings.setdefault("accelerator", "cpu") if "strategy" not in settings else None
    trainer = Trainer(max_epochs=1, enable_progress_bar=False, enable_checkpointing=False, devices=1, **settings)
    with pytest.raises(ConfigurationError, match=said):
        trainer.fit(make(), loader())


class CallsBackward(Regression):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.manual_backward(self.loss(batch))


class StepsItself(Regression):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.optimizers().step()


@pytest.mark.parametrize("make", [CallsBackward, StepsItself])
def test_an_automatic_module_does_not_step(make: type[Module]) -> None:
    """It says how to turn that on."""
    with pytest.raises(ConfigurationError, match=r"automatic_optimization = False"):
        quiet(max_epochs=1).fit(make(), loader())


def test_outside_of_a_fit() -> None:
    """There are no optimizers."""
    with pytest.raises(ConfigurationError, match="no Trainer is running"):
        GAN().optimizers()


class Foreign(OneOptimizer):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.toggle_optimizer(SGD(network().parameters(), lr=1.0))


def test_an_optimizer_of_another_fit() -> None:
    """Is none of this one's."""
    with pytest.raises(CoreError, match="not an optimizer of this fit"):
        quiet(max_epochs=1).fit(Foreign(), loader())


class Stopped(GAN):
    def manual_backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt


def test_no_optimizer_stays_toggled_after_an_interruption() -> None:
    """All parameters can be trained again."""
    module = Stopped()
    with pytest.raises(KeyboardInterrupt):
        quiet(max_epochs=1).fit(module, real_rows(2))
    assert all(parameter.requires_grad for parameter in module.parameters())
