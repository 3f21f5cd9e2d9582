"""Wrong arguments to the Trainer, its stages and the module: refused by name before anything runs."""

from __future__ import annotations

from collections import UserDict, UserList
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch.optim import SGD
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

from core import Callback, Module, Runtime, Trainer
from core.callbacks import GradientAccumulationScheduler, ModelCheckpoint, ModelSummary, ProgressBar, Timer
from core.checkpoints import TorchCheckpointIO
from core.errors import ConfigurationError, CoreError, UnknownNameError, WrongTypeError
from core.loggers import CSVLogger

from .regression import Regression, dataset, loader, quiet


class HalfLogger:
    log_metrics = None


@pytest.mark.parametrize(
    ("name", "value", "error", "valid"),
    [
        ("max_epochs", -2, ConfigurationError, "must be an integer ≥ 0; -1 or None for no limit"),
        ("max_epochs", 1.5, ConfigurationError, "must be an integer ≥ 0"),
        ("max_steps", True, ConfigurationError, "must be an integer ≥ 0"),
        ("accumulate_grad_batches", 0, ConfigurationError, r"must be an integer ≥ 1\."),
        ("accumulate_grad_batches", None, ConfigurationError, r"must be an integer ≥ 1\."),
        ("check_val_every_n_epoch", "2", ConfigurationError, "must be an integer ≥ 1"),
        ("min_epochs", -1, ConfigurationError, "must be an integer ≥ 0 or None"),
        ("min_steps", 0.5, ConfigurationError, "must be an integer ≥ 0 or None"),
        ("fast_dev_run", -1, ConfigurationError, "must be True, False, or a number of batches"),
        ("limit_train_batches", True, ConfigurationError, "must be an integer ≥ 0 .* or a float from 0.0 to 1.0"),
        ("limit_val_batches", 1.5, ConfigurationError, "a float from 0.0 to 1.0"),
        ("limit_test_batches", -1, ConfigurationError, "must be an integer ≥ 0"),
        ("limit_predict_batches", "all", ConfigurationError, "or None for all"),
        ("overfit_batches", None, ConfigurationError, "must be an integer ≥ 0"),
        ("val_check_interval", 0, ConfigurationError, "must be an integer ≥ 1 .* limit_val_batches=0"),
        ("val_check_interval", 1.5, ConfigurationError, "a float from 0.0 to 1.0"),
        ("num_sanity_val_steps", -2, ConfigurationError, "must be an integer ≥ -1"),
        ("check_val_every_n_epoch", None, ConfigurationError, "val_check_interval must be an integer"),
        ("log_every_n_steps", 0, ConfigurationError, "must be an integer ≥ 1"),
        ("gradient_clip_val", -0.5, ConfigurationError, "must be a number > 0; None or 0 for no clipping"),
        ("gradient_clip_val", "1", ConfigurationError, "must be a number > 0"),
        ("gradient_clip_val", float("nan"), ConfigurationError, "must be a number > 0"),
        ("gradient_clip_algorithm", "both", ConfigurationError, "'norm', 'value'"),
        ("logger", "cvs", UnknownNameError, "Did you mean 'csv'"),
        ("logger", [True], WrongTypeError, r"a method log_metrics\(metrics, step\)"),
        ("logger", [HalfLogger()], WrongTypeError, "a method log_metrics"),
        ("logger", HalfLogger, WrongTypeError, "a method log_metrics"),
        ("callbacks", [object()], WrongTypeError, "classes derived from core.Callback"),
        ("callbacks", ProgressBar, WrongTypeError, "classes derived from core.Callback"),
        ("enable_progress_bar", "no", WrongTypeError, "must be True, False or None"),
        ("enable_checkpointing", "no", WrongTypeError, r"must be True or False\."),
        ("default_root_dir", 3, WrongTypeError, "must be a path .* or None"),
        ("precision", "8-mixed", UnknownNameError, "'bf16-mixed'"),
        ("strategy", "dpp", UnknownNameError, "'ddp'"),
    ],
)
def test_words(name: str, value: Any, error: type[CoreError], valid: str) -> None:
    """Each names the argument, what was given, and what is valid."""
    with pytest.raises(error, match=rf"(?s){name}.*{valid}"):
        quiet(**{name: value})


def test_an_unknown_argument() -> None:
    """The error suggests the most similar one, or else says where all are."""
    for front_end, given, said in (
        (Trainer, "max_epoch", "Trainer: unknown argument 'max_epoch'. Did you mean 'max_epochs'"),
        (Runtime, "divices", "Runtime: unknown argument 'divices'. Did you mean 'devices'"),
        (Runtime, "colour", "Runtime: unknown argument 'colour'. All of them: help"),
    ):
        with pytest.raises(WrongTypeError, match=said):
            front_end(**{given: 1})  # type: ignore[arg-type]


def test_settings_are_checked_when_they_are_assigned() -> None:
    """An attribute that is a setting takes what the constructor takes; the settings themselves are frozen."""
    trainer = quiet(max_epochs=3)
    trainer.max_epochs = -1
    trainer.limit_val_batches = 2
    assert (trainer.settings.max_epochs, trainer.settings.limit_val_batches) == (-1, 2)
    with pytest.raises(ConfigurationError, match="accumulate_grad_batches=0: must be an integer ≥ 1"):
        trainer.accumulate_grad_batches = 0
    with pytest.raises(AttributeError):
        trainer.settings.max_epochs = 5  # type: ignore[misc]
    assert trainer.accumulate_grad_batches == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("max_epoch", r"trainer\.max_epoch = 3: there is no such setting\. Did you mean 'max_epochs'\?"),
        ("gradient_clip_value", "Did you mean 'gradient_clip_val'"),
        ("limit_train_batch", "Did you mean 'limit_train_batches'"),
        ("accumulate_gradient_batches", "Did you mean 'accumulate_grad_batches'"),
        (
            "deterministic",
            r"no effect after the Trainer was made\. Pass it to the constructor: Trainer\(deterministic=3\)",
        ),
        ("devices", r"Trainer\(devices=3\)"),
    ],
)
def test_attributes_without_effect(name: str, message: str) -> None:
    """A misspelt setting, and an argument of the constructor, cannot be assigned."""
    trainer: Any = quiet()
    with pytest.raises(ConfigurationError, match=message):
        setattr(trainer, name, 3)
    assert name not in vars(trainer)


def test_attributes_of_the_user() -> None:
    """A class that derives from the Trainer has its own."""

    class Mine(Trainer):
        pass

    trainer: Any = Mine(accelerator="cpu", logger=False, max_epochs=1)
    trainer.my_max_epochs, trainer.num_epochs, trainer.best_score, trainer.max_epochs = 1, 2, 3, 4
    assert (trainer.my_max_epochs, trainer.num_epochs, trainer.best_score, trainer.settings.max_epochs) == (1, 2, 3, 4)


def test_settings_that_change_during_a_fit() -> None:
    """They act from the next epoch on, but for those that the step is made from, which are refused."""
    found: list[int] = []

    class Changes(Callback):
        def on_train_epoch_end(self, trainer: Trainer, module: Any) -> None:
            found.append(trainer.global_step)
            trainer.max_epochs, trainer.limit_train_batches = 3, 2
            for name in ("accumulate_grad_batches", "gradient_clip_val"):
                with pytest.raises(ConfigurationError, match=f"{name}=2: cannot be changed while fit is running"):
                    setattr(trainer, name, 2)

    trainer = quiet(max_epochs=1, callbacks=Changes())
    trainer.fit(Regression(), loader())
    assert found == [7, 9, 11]
    trainer.accumulate_grad_batches = 2
    trainer.fit(Regression(), loader())
    assert trainer.global_step == 3


@pytest.mark.parametrize(
    ("given", "ruled_out"),
    [
        (ModelCheckpoint, {"enable_checkpointing": False}),
        (ProgressBar, {"enable_progress_bar": False}),
        (ModelSummary, {"enable_model_summary": False}),
    ],
)
def test_a_callback_that_is_also_ruled_out(given: type[Callback], ruled_out: dict[str, bool]) -> None:
    """Arguments that contradict each other are refused; neither wins in silence."""
    ((name, _),) = ruled_out.items()
    with pytest.raises(ConfigurationError, match=f"{name}=False, but there is a {given.__name__}"):
        Trainer(accelerator="cpu", devices=1, callbacks=[given()], **ruled_out)  # type: ignore[arg-type]


@pytest.mark.parametrize("stage", ["fit", "validate", "test", "predict"])
@pytest.mark.parametrize(
    ("module", "loaders", "message"),
    [
        (3, loader(), "model: must be a core.Module or a torch.nn.Module, not an object of type int"),
        (Regression, loader(), "model: must be a core.Module or a torch.nn.Module, not the class Regression"),
        (
            Regression(),
            dataset(),
            "dataloaders: must be a torch DataLoader, .*, not an object of type TensorDataset",
        ),
        (Regression(), None, "there is no loader"),
        (Regression(), {}, "has no loader"),
        (Regression(), [loader(), 3], "CombinedLoader: int is not a loader"),
    ],
)
def test_objects_of_another_kind(stage: str, module: Any, loaders: Any, message: str) -> None:
    """In every stage, before it begins."""
    trainer = quiet(max_epochs=1)
    with pytest.raises((WrongTypeError, ConfigurationError), match=message):
        getattr(trainer, stage)(module, loaders)
    assert not trainer.runtime._life.is_live


def test_validation_data_of_another_kind() -> None:
    """The error names the argument of the two that is meant."""
    with pytest.raises(WrongTypeError, match=r"val_dataloaders: must be a torch .* not an object of type int"):
        quiet().fit(Regression(), loader(), 5)


class Bare(Module):
    pass


class OnlyTrains(Module):
    training_step = Regression.training_step
    configure_optimizers = Regression.configure_optimizers


@pytest.mark.parametrize(
    ("module", "stage", "missing"),
    [
        (Bare, "fit", "'training_step', 'configure_optimizers'$|'training_step', 'configure_optimizers'\\."),
        (OnlyTrains, "fit", r"'validation_step'\."),
        (Bare, "validate", r"'validation_step'\."),
        (Bare, "test", r"'test_step'\."),
    ],
)
def test_steps_that_are_missing(module: type[Module], stage: str, missing: str) -> None:
    """Named all at once."""
    loaders = (loader(), loader()) if module is OnlyTrains else (loader(),)
    with pytest.raises(ConfigurationError, match=f"module: {module.__name__} does not define {missing}"):
        getattr(quiet(), stage)(module(), *loaders)


class ValidatingModule(Regression):
    def on_after_optimizer_step(self, loss: Any) -> None:
        """A hook of another library's."""


class HastyCallback(Callback):
    def on_train_epoch_ends(self, trainer: Any, module: Any) -> None:
        """A hook that there is not, and one that is not meant as such."""

    on_gpu = False


def test_a_hook_that_there_is_not() -> None:
    """No one would call it, so it is refused, with the hooks that there are and the nearest."""
    with pytest.raises(ConfigurationError, match=r"ValidatingModule defines 'on_after_optimizer_step'.*'on_fit_end'"):
        quiet().validate(ValidatingModule(), loader())
    near = r"callbacks: HastyCallback defines 'on_train_epoch_ends', which is not a hook.*mean 'on_train_epoch_end'"
    with pytest.raises(ConfigurationError, match=near):
        quiet(callbacks=HastyCallback())


class CallsItself(Regression):
    """Its base class calls methods with the names of hooks of other versions, as libraries of models do."""

    ended: tuple[str, ...] = ()

    def on_train_epoch_end(self) -> None:
        self.on_epoch_end("train")

    def on_validation_epoch_end(self) -> None:
        for finish in (self.on_epoch_end, lambda name: self.val_end(name)):
            finish("validation")

    def on_epoch_end(self, name: str) -> None:
        self.ended += (name,)

    def val_end(self, name: str) -> None:
        self.ended += (f"{name} end",)


class CallsOnlyItsBase(Regression):
    def on_epoch_end(self) -> None:
        super().on_epoch_end()  # type: ignore[misc]


def test_hooks_that_the_module_calls() -> None:
    """They are allowed. A method that no other method of the module calls is never called, so it is an error."""
    module = type(
        "Derived", (CallsItself,), {"on_epoch_end": lambda self, name: CallsItself.on_epoch_end(self, name)}
    )()
    quiet(max_epochs=1, num_sanity_val_steps=0).fit(module, loader(), loader())
    assert module.ended == ("validation", "validation end", "train")
    with pytest.raises(ConfigurationError, match="CallsOnlyItsBase defines 'on_epoch_end', which the Trainer does not"):
        quiet().validate(CallsOnlyItsBase(), loader())


def test_lists_and_mappings_of_a_configuration_library(tmp_path: Path) -> None:
    """Those of Hydra are sequences and mappings, and neither lists nor dicts."""
    own = Callback()
    trainer = quiet(
        callbacks=UserList(
            [own, Timer(duration=cast(Any, UserDict(hours=1))), GradientAccumulationScheduler(UserDict({0: 2}))]
        ),
        logger=UserList([CSVLogger(tmp_path)]),
        plugins=UserList([TorchCheckpointIO()]),
        devices=UserList([0]),
    )
    assert own in trainer.callbacks
    assert [type(logger) for logger in trainer.loggers] == [CSVLogger]
    assert trainer.accumulate_grad_batches == 1
    runtime = Runtime(
        accelerator="cpu", devices=cast(Any, UserList([0])), log_with=UserList(["csv"]), project_dir=tmp_path
    )
    assert runtime.plan.devices == ("cpu",)
    with pytest.raises(ConfigurationError, match=r"accumulate_grad_batches=.*GradientAccumulationScheduler"):
        quiet(accumulate_grad_batches=UserDict({0: 2}))


def test_a_module_that_cannot_predict() -> None:
    """Without ``predict_step`` it takes ``forward``, and one of the two has to be there."""
    with pytest.raises(ConfigurationError, match="module: Bare defines neither 'predict_step' nor 'forward'"):
        quiet().predict(Bare(), loader())


def test_a_predict_step_that_the_object_was_given() -> None:
    """It counts as that of a class does."""
    module: Any = Bare()
    module.predict_step = lambda batch, batch_idx: batch_idx
    assert quiet().predict(module, loader()) == list(range(len(loader())))


class Scheduleless:
    pass


def sgd(module: Module) -> SGD:
    return SGD(module.parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("returned", "error"),
    [
        (lambda m: [], ConfigurationError),
        (lambda m: "sgd", WrongTypeError),
        (lambda m: [sgd(m), sgd(m)], ConfigurationError),
        (lambda m: ([sgd(m), sgd(m)], []), ConfigurationError),
        (lambda m: {}, ConfigurationError),
        (lambda m: {"optimiser": sgd(m)}, ConfigurationError),
        (lambda m: {"optimizer": sgd(m), "scheduler": StepLR(sgd(m), 1)}, ConfigurationError),
        (lambda m: {"optimizer": sgd(m), "lr_scheduler": Scheduleless()}, WrongTypeError),
        (lambda m: {"optimizer": sgd(m), "lr_scheduler": ReduceLROnPlateau(sgd(m))}, ConfigurationError),
        (lambda m: {"optimizer": sgd(m), "lr_scheduler": {"interval": "step"}}, WrongTypeError),
        (lambda m: described(m, every=2), ConfigurationError),
        (lambda m: described(m, interval="batch"), ConfigurationError),
        (lambda m: described(m, frequency=0), ConfigurationError),
        (lambda m: described(m, frequency=True), ConfigurationError),
    ],
)
def test_what_configure_optimizers_may_not_return(returned: Any, error: type[CoreError]) -> None:
    """The error says what it may."""

    class Wrong(Regression):
        def configure_optimizers(self) -> Any:
            return returned(self)

    with pytest.raises(
        error, match=r"configure_optimizers: .*([Rr]eturn|interval must be|Valid|automatic_optimization = False)"
    ):
        quiet(max_epochs=1).fit(Wrong(), loader())


def described(module: Module, **arguments: Any) -> dict[str, Any]:
    optimizer = sgd(module)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": StepLR(optimizer, 1), **arguments}}


@pytest.mark.parametrize(
    "wrap",
    [
        lambda optimizer: optimizer,
        lambda optimizer: [optimizer],
        lambda optimizer: ([optimizer], [StepLR(optimizer, 1)]),
        lambda optimizer: ([optimizer], [{"scheduler": StepLR(optimizer, 1), "interval": "step"}]),
        lambda optimizer: {"optimizer": optimizer},
        lambda optimizer: {"optimizer": optimizer, "lr_scheduler": StepLR(optimizer, 1)},
        lambda optimizer: {"optimizer": optimizer, "lr_scheduler": [StepLR(optimizer, 1), StepLR(optimizer, 2)]},
    ],
)
def test_what_configure_optimizers_may_return(wrap: Any) -> None:
    """Each form trains."""

    class Right(Regression):
        def configure_optimizers(self) -> Any:
            return wrap(sgd(self))

    module = Right()
    before = [parameter.clone() for parameter in module.parameters()]
    quiet(max_epochs=1).fit(module, loader())
    assert not any(torch.equal(now, then) for now, then in zip(module.parameters(), before, strict=True))


@pytest.mark.parametrize(
    "output", [1.0, "loss", {"los": torch.ones(())}, {"loss": 1.0}, (torch.ones(()), 1), [torch.ones(())]]
)
def test_what_a_training_step_may_not_return(output: Any) -> None:
    """The error shows what was returned and says what is valid."""

    class Wrong(Regression):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return output

    with pytest.raises(WrongTypeError, match=r"training_step: returned .*must return the loss"):
        quiet(max_epochs=1).fit(Wrong(), loader())
