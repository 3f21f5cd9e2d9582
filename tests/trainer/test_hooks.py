"""Hooks of modules and callbacks: which are called, in which order, and what an error in one of them does."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from core import Callback, Module, Trainer
from core.callbacks import ModelCheckpoint, ModelSummary, ProgressBar
from core.errors import ConfigurationError, WrongTypeError
from core.hints.remedies import remedies
from core.trainer.module.hooks import Hooks, ModuleHooks

from .regression import Regression, assert_same, loader, quiet

HOOKS = [name for name in vars(ModuleHooks) if name.startswith("on_")]
OF_CALLBACKS = [name for name in vars(Callback) if name.startswith("on_")]


def recording(base: type[Any], names: list[str], label: str, calls: list[str]) -> Any:
    """An object of a class derived from ``base`` that notes each call of the hooks ``names``."""

    def noting(name: str) -> Callable[..., None]:
        def hook(self: Any, *args: Any) -> None:
            told = [str(arg) for arg in args if isinstance(arg, int | str)]
            calls.append(" ".join([label, name, *told]))

        return hook

    return type(label, (base,), {name: noting(name) for name in names})()


BATCH = (
    "on_train_batch_start {}",
    "on_before_zero_grad",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "on_train_batch_end {}",
)
VALIDATION = ("model_eval", "start", "epoch_start", "batch_start 0", "batch_end 0", "epoch_end", "end", "model_train")
MODES = ("model_eval", "model_train")
"""Hooks that only a module has."""


def test_the_order_of_all_hooks() -> None:
    """The callbacks' before the module's, but at an epoch's end; ``outputs`` is the loss, counts are from 0."""
    calls: list[str] = []
    module = recording(Regression, HOOKS, "module", calls)
    callback = recording(Callback, OF_CALLBACKS, "callback", calls)
    quiet(max_epochs=2, callbacks=callback).fit(module, loader(25), loader(50))
    both = ["callback {}", "module {}"]
    epoch = [
        *(who.format("on_train_epoch_start") for who in both),
        *(who.format(hook.format(index)) for index in (0, 1) for hook in BATCH for who in both),
        *(
            who.format(f"on_validation_{at}")
            for at in VALIDATION
            for who in (both[1:] if at in MODES else reversed(both) if at == "epoch_end" else both)
        ),
        *(who.format("on_train_epoch_end") for who in reversed(both)),
    ]
    start, end = (
        [who.format(f"on_{of}_{at}") for of in stages for who in both]
        for at, stages in (("start", ("fit", "train")), ("end", ("train", "fit")))
    )
    assert calls == [*start, *epoch, *epoch, *end]


@pytest.mark.parametrize(("stage", "of"), [("validate", "validation"), ("test", "test"), ("predict", "predict")])
def test_the_order_of_the_hooks_of_evaluation(stage: str, of: str) -> None:
    """As in the validation of a fit, under the names of the stage."""
    calls: list[str] = []
    module = recording(Regression, HOOKS, "module", calls)
    getattr(quiet(), stage)(module, loader(50))
    assert calls == [f"module on_{of}_{at}" for at in VALIDATION]


@pytest.mark.parametrize("hook", ["on_validation_end", "on_test_end"])
def test_nothing_is_logged_after_the_epochs_end(hook: str) -> None:
    """The loggers have their values already."""
    module = type("Late", (Regression,), {hook: lambda self: self.log("late", 1)})()
    with pytest.raises(ConfigurationError, match=r"log\('late'\): no epoch or evaluation is running"):
        getattr(quiet(), "test" if "test" in hook else "validate")(module, loader())


def test_what_the_hooks_of_a_step_are_given() -> None:
    """Trainer and module, the batch, its index, and the loss that the step returned."""
    found: list[Any] = []

    class Look(Callback):
        def on_train_batch_start(self, trainer: Trainer, module: Any, batch: Any, batch_idx: int) -> None:
            found.append((trainer, module, batch, batch_idx))

        def on_train_batch_end(self, trainer: Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            found.append(outputs)

    class Fixed(Regression):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.returned = self.loss(batch)
            return {"loss": self.returned, "name": "kept"}

    batch = (torch.ones(2, 6), torch.ones(2, 1))
    module, trainer = Fixed(), quiet(max_epochs=1, callbacks=Look())
    trainer.fit(module, [batch])
    assert found[0][0] is trainer
    assert found[0][1] is module
    assert found[0][2] is batch
    assert found[0][3] == 0
    assert list(found[1]) == ["loss", "name"]
    assert found[1]["name"] == "kept"
    assert torch.equal(found[1]["loss"], module.returned)
    assert not found[1]["loss"].requires_grad


def test_a_batch_start_hook_skips_the_rest_of_the_epoch() -> None:
    """After -1 no further batch of the epoch trains, and the epoch ends as usual."""

    class Skip(Callback):
        ends = 0

        def on_train_batch_start(self, trainer: Trainer, module: Any, batch: Any, batch_idx: int) -> int | None:
            return -1 if batch_idx == 2 else None

        def on_train_epoch_end(self, trainer: Trainer, module: Any) -> None:
            self.ends += 1

    skip, plain = Skip(), quiet(max_epochs=2, limit_train_batches=2)
    trainer, module, expected = quiet(max_epochs=2, callbacks=skip), Regression(), Regression()
    expected.load_state_dict(module.state_dict())
    for runner, trained in ((trainer, module), (plain, expected)):
        torch.manual_seed(0)
        runner.fit(trained, loader())
    assert trainer.global_step == 4
    assert skip.ends == 2
    assert_same(module, expected)


def test_a_step_may_leave_out_the_index() -> None:
    """``training_step(self, batch)`` is enough; what cannot be called is refused by name."""

    class Short(Regression):
        def training_step(self, batch: Any) -> Any:  # type: ignore[override]
            return self.loss(batch)

        def validation_step(self, batch: Any) -> None:  # type: ignore[override]
            self.log("loss", self.loss(batch))

    class Long(Regression):
        def training_step(self, batch: Any, batch_idx: int, name: str) -> Any:  # type: ignore[override]
            return self.loss(batch)

    trainer = quiet(max_epochs=1)
    trainer.fit(Short(), loader(), loader())
    assert trainer.global_step == 7
    with pytest.raises(
        ConfigurationError, match=r"training_step\(batch.*name.*Define it as training_step\(self, batch"
    ):
        quiet(max_epochs=1).fit(Long(), loader())


def test_both_kinds_of_hooks_are_declared_alike() -> None:
    """A callback has each of the module's hooks but those of checkpoints and modes, with trainer and module first."""
    for name in HOOKS:
        if name in ("on_save_checkpoint", "on_load_checkpoint") or name.endswith(MODES):
            continue
        of_module = list(inspect.signature(getattr(ModuleHooks, name)).parameters)
        of_callback = list(inspect.signature(getattr(Callback, name)).parameters)
        assert of_callback == ["self", "trainer", "pl_module", *of_module[1:]], name


def test_only_hooks_that_are_overridden_are_bound() -> None:
    """One that no one overrides costs the loop nothing; one that a base class overrides counts."""

    class Base(Callback):
        def on_train_batch_end(self, trainer: Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            pass

    class Derived(Base):
        pass

    hooks = Hooks(quiet(), Regression(), [Callback(), Derived(), ModelCheckpoint()])
    assert hooks.bind("on_train_batch_start") == ()
    assert len(hooks.bind("on_train_batch_end")) == 1


def test_checkpoints_come_after_all_other_callbacks() -> None:
    """Wherever the user put them; the others keep their order."""

    class Other(Callback):
        pass

    mine, others = ModelCheckpoint(), [Other(), Other()]
    trainer = quiet(callbacks=[mine, *others], enable_checkpointing=True)
    assert trainer.callbacks == [*others, mine]
    assert trainer.checkpoint_callback is mine
    added = quiet(callbacks=others, enable_checkpointing=True, enable_progress_bar=True).callbacks
    assert added[:2] == others
    assert [type(callback) for callback in added[2:]] == [ProgressBar, ModelCheckpoint]


class Boom(Exception):
    pass


class Fails(Callback):
    """Raises in one hook, and notes what it is told of errors."""

    def __init__(self, error: BaseException, hook: str) -> None:
        self.error, self.hook = error, hook
        self.told: list[tuple[BaseException, bool]] = []

    def on_fit_start(self, trainer: Trainer, module: Any) -> None:
        self._fail_at("on_fit_start")

    def on_train_batch_end(self, trainer: Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.current_epoch == 1 and batch_idx == 2:
            self._fail_at("on_train_batch_end")

    def on_validation_end(self, trainer: Trainer, module: Any) -> None:
        self._fail_at("on_validation_end")

    def on_exception(self, trainer: Trainer, module: Any, error: BaseException) -> None:
        self.told.append((error, module.trainer is trainer))

    def _fail_at(self, hook: str) -> None:
        if self.hook == hook:
            raise self.error


@pytest.mark.parametrize("hook", ["on_fit_start", "on_train_batch_end", "on_validation_end"])
@pytest.mark.parametrize("error", [Boom("planted"), KeyboardInterrupt(), SystemExit(3)])
def test_an_error_reaches_callbacks_and_caller_and_the_next_fit_is_whole(error: BaseException, hook: str) -> None:
    """The very error is raised; nothing of the broken run is left in module or trainer, nor in a second fit."""
    expected = Regression()
    module = Regression()
    module.load_state_dict(expected.state_dict())
    torch.manual_seed(0)
    quiet(max_epochs=2).fit(expected, loader(), loader())

    before = {name: value.clone() for name, value in module.state_dict().items()}
    fails, later = Fails(error, hook), Fails(error, "never")
    trainer = quiet(max_epochs=2, callbacks=[fails, later])
    with pytest.raises(type(error)) as caught:
        trainer.fit(module, loader(), loader())
    assert caught.value is error
    assert fails.told == later.told == [(error, True)]
    assert module._trainer is None
    assert trainer.metric_log.stage is None
    assert not trainer.runtime._life.is_live
    assert all(part.training for part in module.modules())

    fails.hook = "never"
    module.load_state_dict(before)
    torch.manual_seed(0)
    trainer.fit(module, loader(), loader())
    assert_same(module, expected)
    assert (trainer.current_epoch, trainer.global_step) == (2, 14)


def test_an_error_in_on_exception_does_not_hide_the_first() -> None:
    """Both are in the traceback, and the trainer can be used again."""

    class Worse(Callback):
        def on_exception(self, trainer: Trainer, module: Any, error: BaseException) -> None:
            raise ValueError("in on_exception")

    module, trainer = Regression(), quiet(max_epochs=1, callbacks=[Fails(Boom(), "on_fit_start"), Worse()])
    with pytest.raises(ValueError, match="in on_exception") as caught:
        trainer.fit(module, loader())
    assert isinstance(caught.value.__context__, Boom)
    (note,) = caught.value.__notes__
    assert note.startswith("It was raised in on_exception, which was called for Boom")
    assert module._trainer is None
    trainer.callbacks.clear()
    trainer.fit(module, loader())
    assert trainer.global_step == 7


def test_a_trainer_runs_one_thing_at_a_time() -> None:
    """A stage of the same trainer within its fit is refused; one of another trainer, on the same module, is not."""
    seen: list[Any] = []

    class Nested(Callback):
        def on_train_epoch_end(self, trainer: Trainer, module: Any) -> None:
            with pytest.raises(ConfigurationError, match="already running"):
                trainer.test(module, loader())
            seen.extend(quiet().test(module, loader()))
            assert module.trainer is trainer

    module, trainer = Regression(), quiet(max_epochs=2, callbacks=Nested())
    trainer.fit(module, loader())
    assert trainer.global_step == 14
    assert [set(metrics) for metrics in seen] == [{"test_error"}] * 2


def test_should_stop_ends_the_fit_after_the_running_step() -> None:
    """With accumulation, after the optimizer step that is under way; validation and the epoch's end still come."""
    calls: list[str] = []

    class Stop(Callback):
        def on_train_batch_end(self, trainer: Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            calls.append(f"batch {batch_idx}")
            trainer.should_stop = batch_idx == 1 or trainer.should_stop

        def on_validation_end(self, trainer: Trainer, module: Any) -> None:
            calls.append("validate")

        def on_train_epoch_end(self, trainer: Trainer, module: Any) -> None:
            calls.append("epoch")

    trainer = quiet(max_epochs=3, accumulate_grad_batches=3, callbacks=Stop())
    trainer.fit(Regression(), loader(), loader())
    assert calls == ["batch 0", "batch 1", "batch 2", "validate", "epoch"]
    assert (trainer.current_epoch, trainer.global_step) == (1, 1)
    trainer.callbacks.clear()
    trainer.fit(Regression(), loader())
    assert trainer.current_epoch == 3, "a new fit is not stopped by what stopped the last"


def test_should_stop_between_epochs() -> None:
    """Set in validation, it ends the fit with the epoch, which counts as done."""

    class Stop(Callback):
        def on_validation_epoch_end(self, trainer: Trainer, module: Any) -> None:
            trainer.should_stop = trainer.callback_metrics["error"] > 0  # type: ignore[assignment]

    trainer = quiet(max_epochs=3, callbacks=Stop())
    trainer.fit(Regression(), loader(), loader())
    assert (trainer.current_epoch, trainer.global_step) == (1, 7)


@pytest.mark.parametrize("name", remedies("methods", ["Callback", "Module"]))
def test_what_lightning_calls_and_this_trainer_does_not(name: str) -> None:
    """A method that would never be called is refused by name, with what to do instead."""
    module = type("Mine", (Regression,), {name: lambda self, *args: None})()
    with pytest.raises(ConfigurationError, match=f"Mine defines {name!r}, which the Trainer does not call. [A-Z]"):
        quiet(max_epochs=1).fit(module, loader())


OTHER_NAMES = {
    "validation_end": "on_validation_end",
    "training_end": "on_train_end",
    "train_epoch_end": "on_train_epoch_end",
    "val_epoch_end": "on_validation_epoch_end",
    "predict_epoch_end": "on_predict_epoch_end",
    "test_begin": "on_test_start",
    "val_step": "validation_step",
}
"""Names of other versions and libraries, and today's."""


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_hooks_with_names_of_other_versions(name: str) -> None:
    """Are refused with today's name, in callbacks too; a method of the user's that today's hook may call is not."""
    meant = OTHER_NAMES[name]
    methods = {name: lambda self, *args: None}
    own = {**methods, "validation_step": Module.validation_step}
    with pytest.raises(
        ConfigurationError, match=f"Mine defines {name!r}, which is never called. Did you mean {meant!r}"
    ):
        quiet(max_epochs=1).fit(type("Mine", (Regression,), own)(), loader())
    if meant.startswith("on_"):
        with pytest.raises(ConfigurationError, match=f"callbacks: Mine defines {name!r}.* {meant!r}"):
            quiet(max_epochs=1, callbacks=type("Mine", (Callback,), methods)())
    helping = type("Mine", (Regression,), {**methods, meant: lambda self, *args: getattr(self, name)()})()
    quiet(max_epochs=1).fit(helping, loader())


METHODS = (
    *("prepare_data", "setup", "configure_optimizers", "optimizer_step", "training_step", "optimizer_zero_grad"),
    *("backward", "configure_gradient_clipping", "lr_scheduler_step", "validation_step", "teardown"),
)
"""Of a Module, next to its hooks."""


def test_the_order_on_the_page() -> None:
    """docs/hooks.md lists what ``fit`` calls in one epoch of one batch, and one of validation: in the real order."""
    calls: list[str] = []

    def noting(name: str) -> Callable[..., Any]:
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            return getattr(super(own, self), name)(*args, **kwargs)

        return method

    class Scheduled(Regression):
        def configure_optimizers(self) -> Any:
            optimizer = super().configure_optimizers()
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

    own = type("Own", (Scheduled,), {name: noting(name) for name in (*METHODS, *HOOKS)})
    callback = recording(Callback, [*OF_CALLBACKS, "setup", "teardown"], "callback", [])
    for name in (*OF_CALLBACKS, "setup", "teardown"):
        setattr(type(callback), name, lambda self, *args, of=name: calls.append(of))
    limits = {"limit_train_batches": 1, "limit_val_batches": 1}
    quiet(max_epochs=1, num_sanity_val_steps=1, callbacks=callback, **limits).fit(own(), loader(), loader())
    found = [name for index, name in enumerate(calls) if index == 0 or calls[index - 1] != name]

    page = Path(__file__).parents[2] / "docs" / "hooks.md"
    (block,) = re.findall(r"```text\n(prepare_data.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert [line.split()[0] for line in block.splitlines()] == found


class Brings(Regression):
    """Brings its callbacks along."""

    def configure_callbacks(self) -> Any:
        return [ProgressBar(refresh_seconds=5), ModelCheckpoint(filename="own")]


def test_a_modules_own_callbacks(tmp_path: Path) -> None:
    """Join the Trainer's, and replace those of their class, also in a second run; checkpoints come last."""
    other = Callback()
    mine = ModelCheckpoint(filename="given")
    trainer = Trainer(accelerator="cpu", max_epochs=1, callbacks=[mine, other], default_root_dir=tmp_path)
    for _ in range(2):
        trainer.fit(Brings(), loader())
    assert [type(callback) for callback in trainer.callbacks] == [Callback, ModelSummary, ProgressBar, ModelCheckpoint]
    assert mine not in trainer.callbacks
    wrong = type("Wrong", (Regression,), {"configure_callbacks": lambda self: ["bar"]})()
    with pytest.raises(WrongTypeError, match="configure_callbacks: 'bar' is not a Callback"):
        quiet().fit(wrong, loader())


def test_a_step_without_batches_has_no_hook_before_it() -> None:
    """Where ``training_step`` has skipped all of its batches, there are no gradients to look at."""

    class Skips(Regression):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return None if batch_idx in (2, 3) else super().training_step(batch, batch_idx)

    seen: list[int] = []

    class Note(Callback):
        def on_before_optimizer_step(self, trainer: Trainer, module: Any, optimizer: Any) -> None:
            seen.append(trainer.global_step)

    trainer = quiet(max_epochs=1, accumulate_grad_batches=2, callbacks=Note())
    trainer.fit(Skips(), loader())
    assert (seen, trainer.global_step) == ([0, 2, 3], 4)
