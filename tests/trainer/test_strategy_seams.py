"""The front ends call what a strategy overrides."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from core import Runtime, Trainer
from core.callbacks import ModelCheckpoint
from core.errors import ConfigurationError
from core.runtime.prepare.wrappers import PreparedOptimizer
from core.strategies import SingleDeviceStrategy

from .regression import Regression, assert_same, loader


class Noting(SingleDeviceStrategy):
    """Notes which of its methods are called; each does what the base class does."""

    def __init__(self) -> None:
        super().__init__(accelerator="cpu")
        self.calls: list[str] = []


class OwnSetup(Noting):
    """Looks at the Trainer, as Lightning's strategies do."""

    def setup(self, trainer: Trainer) -> None:
        self.calls.append(f"setup on {self.root_device} with {type(trainer.lightning_module).__name__}")
        super().setup(trainer)


def test_setup_gets_the_trainer() -> None:
    """In each stage, when the accelerator and the other parts are there; a Runtime, which has none, refuses it."""
    strategy = OwnSetup()
    trainer = Trainer(strategy=strategy, max_epochs=1, logger=False, enable_checkpointing=False)
    trainer.fit(Regression(), loader())
    trainer.test(Regression(), loader(), verbose=False)
    assert strategy.calls == 2 * ["setup on cpu with Regression"]
    with pytest.raises(ConfigurationError, match=r"OwnSetup defines setup\(trainer\), which only a Trainer calls"):
        Runtime(strategy=OwnSetup())


class OwnStep(Noting):
    """Owns backward and step, as an engine does."""

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        self.calls.append("backward")
        super().backward(loss, *args, **kwargs)

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        self.calls.append(f"step of {type(optimizer).__name__}")
        return super().optimizer_step(optimizer, closure)

    def clip_gradients(
        self, parameters: Iterable[nn.Parameter], clip_value: float, algorithm: str = "norm", norm_type: float = 2.0
    ) -> Any:
        self.calls.append(f"clip {algorithm} {clip_value}")
        return super().clip_gradients(parameters, clip_value, algorithm, norm_type)


class Sharded(SGD):
    """What a strategy replaces the user's optimizer by."""


class OwnOptimizer(Noting):
    """Replaces the optimizer, and its state has another format."""

    def setup_optimizers(self, optimizers: Sequence[Optimizer]) -> list[Optimizer]:
        return [Sharded(optimizer.param_groups, lr=0.05, momentum=0.9) for optimizer in optimizers]

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        self.calls.append(f"state of {type(optimizer).__name__}")
        return super().optimizer_state(optimizer)

    def load_optimizer_state(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        self.calls.append(f"load into {type(optimizer).__name__}")
        super().load_optimizer_state(optimizer, state)


class OwnTrainingStep(Noting):
    """Runs the whole step itself, as what compiles it whole does."""

    def training_step(self, forward: Any, options: Any) -> Any:
        self.calls.append(f"{type(options.optimizer).__name__} {options.accumulate} {options.clip_value}")
        step = super().training_step(forward, options)

        def own_step(batch: Any, batch_idx: int, is_step_end: bool) -> Tensor | None:
            self.calls.append(f"{batch_idx} {is_step_end}")
            return step(batch, batch_idx, is_step_end)

        return own_step


def trainer(strategy: Noting | str, **settings: Any) -> Trainer:
    defaults: dict[str, Any] = {
        "enable_progress_bar": False,
        "enable_checkpointing": False,
        "logger": False,
        "max_epochs": 1,
    }
    return Trainer(strategy=strategy, devices=1, **{**defaults, **settings})


def fit(strategy: Noting | str, ckpt_path: Path | None = None, **settings: Any) -> Regression:
    torch.manual_seed(0)
    module = Regression()
    trainer(strategy, **settings).fit(module, loader(20), ckpt_path=ckpt_path)
    return module


@pytest.mark.parametrize(
    ("strategy", "settings", "calls"),
    [
        (OwnStep, {}, ["backward", "step of SGD"] * 3),
        (
            OwnStep,
            {"accumulate_grad_batches": 2, "gradient_clip_val": 0.5},
            ["backward", "backward", "clip norm 0.5", "step of SGD", "backward", "clip norm 0.5", "step of SGD"],
        ),
        (OwnTrainingStep, {}, ["SGD 1 None", "0 True", "1 True", "2 True"]),
        (
            OwnTrainingStep,
            {"accumulate_grad_batches": 2, "gradient_clip_val": 0.5},
            ["SGD 2 0.5", "0 False", "1 True", "2 True"],
        ),
        (OwnOptimizer, {}, []),
    ],
)
def test_the_trainer_goes_through_what_is_overridden(
    strategy: type[Noting], settings: dict[str, Any], calls: list[str]
) -> None:
    """In order, and with the result of the strategy that overrides nothing."""
    own = strategy()
    module = fit(own, **settings)
    assert own.calls == calls
    assert_same(module, fit("single_device", accelerator="cpu", **settings))


def test_the_optimizer_that_the_strategy_made_is_saved_and_resumed(tmp_path: Path) -> None:
    """Not the one that it was made from."""
    first, second = OwnOptimizer(), OwnOptimizer()
    fit(first, enable_checkpointing=True, default_root_dir=tmp_path)
    assert first.calls == ["state of Sharded"]
    path = tmp_path / "checkpoints" / "version_0" / "epoch=0-step=3.ckpt"
    resumed = fit(second, path, max_epochs=2)
    assert second.calls == ["load into Sharded"]
    assert_same(resumed, fit(OwnOptimizer(), max_epochs=2))


def test_the_runtime_goes_through_what_is_overridden() -> None:
    """An optimizer is wrapped where the strategy has a say in its step."""
    own = OwnStep()
    runtime = Runtime(strategy=own, devices=1)
    module = nn.Linear(2, 1)
    model, optimizer = runtime.prepare(module, SGD(module.parameters(), lr=0.1))
    assert model is module
    assert isinstance(optimizer, PreparedOptimizer)
    runtime.backward(model(torch.ones(1, 2)).sum())
    optimizer.step()
    assert own.calls == ["backward", "step of SGD"]


class EndsStep(Regression):
    """Its step gives parts of the loss, which the end of the step joins."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        inputs, targets = batch
        return {"errors": (self(inputs) - targets).square().mean(1)}

    def training_step_end(self, output: Any) -> Any:
        return output["errors"].mean()


def test_the_end_of_a_step_makes_the_loss() -> None:
    """What ``training_step`` returned goes through ``training_step_end``, whose loss is trained on."""
    trained = []
    for make in (Regression, EndsStep):
        torch.manual_seed(0)
        module = make()
        trained.append(module)
        trainer = Trainer(
            accelerator="cpu", max_epochs=1, enable_progress_bar=False, enable_checkpointing=False, logger=False
        )
        trainer.fit(module, loader())
    torch.testing.assert_close(trained[1].state_dict(), trained[0].state_dict())


class ClipsByNorm(Noting):
    """Limits gradients in one of the two ways."""

    clip_algorithms = ("norm",)


def test_a_way_of_clipping_that_a_strategy_has_not_is_refused() -> None:
    """As the Trainer is made, which is before any process starts, and in your own loop where it is asked for."""
    said = "algorithm='value': .*Valid: 'norm'"
    with pytest.raises(ConfigurationError, match=said):
        Trainer(strategy=ClipsByNorm(), gradient_clip_val=0.5, gradient_clip_algorithm="value")
    Trainer(strategy=ClipsByNorm(), gradient_clip_algorithm="value")  # which clips nothing
    with Runtime(strategy=ClipsByNorm()) as runtime:
        module = runtime.prepare(nn.Linear(2, 1))
        runtime.backward(module(torch.ones(1, 2)).sum())
        runtime.clip_grad_norm_(module.parameters(), 0.5)
        with pytest.raises(ConfigurationError, match=said):
            runtime.clip_grad_value_(module.parameters(), 0.5)


class Collecting(Noting):
    """Takes a step of the whole run in every third call; in the sixth call two, as where peers took one more."""

    counts_steps = True

    def __init__(self) -> None:
        super().__init__()
        self.called = self.steps = self.taken = 0

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        self.called += 1
        self.taken = 0 if self.called % 3 else (2 if self.called == 6 else 1)
        self.steps += self.taken
        return super().optimizer_step(optimizer, closure) if self.taken else None

    def global_steps(self) -> int:
        return self.steps

    def steps_taken(self, optimizer: Optimizer) -> int:
        return self.taken


class Decaying(Regression):
    """Its learning rate says how often the scheduler was stepped."""

    def configure_optimizers(self) -> Any:
        self.own = SGD(self.parameters(), lr=1.0)
        scheduler = torch.optim.lr_scheduler.LambdaLR(self.own, lambda step: 0.5**step)
        return {"optimizer": self.own, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def test_calls_that_are_no_steps(tmp_path: Path) -> None:
    """max_steps, schedulers and checkpoints count the steps of the whole run, not the optimizer's calls."""
    strategy, saving = Collecting(), ModelCheckpoint(tmp_path, every_n_train_steps=1, save_top_k=-1, filename="{step}")
    trainer = Trainer(strategy=strategy, max_steps=4, max_epochs=-1, callbacks=saving, logger=False)
    module = Decaying()
    trainer.fit(module, loader())
    assert (strategy.called, trainer.global_step) == (9, 4)
    assert module.own.param_groups[0]["lr"] == 0.5**4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step=1.ckpt", "step=3.ckpt", "step=4.ckpt"]


def test_calls_that_are_no_steps_in_a_loop_of_ones_own() -> None:
    """A prepared scheduler steps as often as the whole run; the runtime says whether the last call was a step."""
    runtime = Runtime(strategy=Collecting())
    module = nn.Linear(1, 1)
    optimizer = SGD(module.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    model, prepared, scheduler = runtime.prepare(module, optimizer, scheduler)
    rates, skipped = [], []
    for _ in range(6):
        runtime.backward(model(torch.ones(1, 1)).sum())
        prepared.step()
        scheduler.step()
        rates.append(optimizer.param_groups[0]["lr"])
        skipped.append(runtime.optimizer_step_was_skipped)
    assert rates == [1, 1, 0.5, 0.5, 0.5, 0.125]
    assert skipped == [True, True, False, True, True, False]
