"""Misspelt members of modules and DataModules, attributes of a Trainer that are set to nonsense, and empty loaders."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

from core import (
    Callback,
    DataModule,
    GradientAccumulationPlugin,
    Module,
    ProjectConfiguration,
    Tuner,
    notebook_launcher,
    rank_zero_only,
)
from core.callbacks import EarlyStopping, LambdaCallback, Timer
from core.data import DataSettings
from core.loggers import CSVLogger
from core.profilers import SimpleProfiler

from .cases import Mistake, Net, check, loader, runtime, trainer
from .test_arguments import logging


class Bare(Module):
    """Has what a fit needs and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.layer(batch[0]).mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Data(DataModule):
    def train_dataloader(self) -> Any:
        return loader()


def derived(base: type[Any], **members: Any) -> Any:
    return type("Mine", (base,), members)()


def fitting(module: Any, train: Any = None, **arguments: Any) -> Any:
    return lambda: trainer(**arguments).fit(module, loader() if train is None else train)


def with_attribute(name: str, value: Any, owner: Any = None) -> Any:
    owner = Bare() if owner is None else owner
    setattr(owner, name, value)
    return owner


def assigned(name: str, value: Any) -> Any:
    def make() -> None:
        fit = trainer()
        setattr(fit, name, value)
        fit.fit(Bare(), loader())

    return make


def appended() -> None:
    fit = trainer()
    fit.callbacks.append(EarlyStopping)  # type: ignore[arg-type]
    fit.fit(Bare(), loader())


def items(count: int, **options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.zeros(count, 3), torch.zeros(count, 1)), batch_size=4, **options)


def nothing(self: Any, *args: Any) -> None:
    del self, args


MISTAKES: dict[str, Mistake] = {
    "British spelling of a setting": Mistake(
        fitting(with_attribute("automatic_optimisation", False)),
        "module: Bare",
        "automatic_optimisation=False",
        "Did you mean 'automatic_optimization'?",
    ),
    "setting of a DataModule": Mistake(
        lambda: trainer().fit(Bare(), with_attribute("prepare_data_pernode", 1, Data())),
        "datamodule: Data",
        "prepare_data_pernode=1",
        "Did you mean 'prepare_data_per_node'?",
    ),
    "misspelt step": Mistake(
        fitting(derived(Bare, validaton_step=nothing)), "module: Mine", "'validaton_step'", "'validation_step'"
    ),
    "misspelt method for a loader": Mistake(
        fitting(derived(Bare, val_dataloaders=nothing)), "module: Mine", "'val_dataloaders'", "'val_dataloader'"
    ),
    "misspelt method of a DataModule": Mistake(
        lambda: trainer().fit(Bare(), derived(Data, val_dataloaders=nothing)),
        "datamodule: Mine",
        "'val_dataloaders'",
        "Did you mean 'val_dataloader'?",
    ),
    "misspelt state of a callback": Mistake(
        fitting(Bare(), callbacks=derived(Callback, load_state_dicts=nothing)),
        "callbacks: Mine",
        "'load_state_dicts'",
        "Did you mean 'load_state_dict'?",
    ),
    "another name for training_step": Mistake(
        fitting(derived(Module, train_step=nothing, configure_optimizers=nothing)),
        "'training_step'",
        "It defines 'train_step'",
        "rename it to 'training_step'",
    ),
    "another name for validation_step": Mistake(
        lambda: trainer().validate(derived(Bare, val_step=nothing), loader()),
        "module",
        "'val_step', which is never called",
        "Did you mean 'validation_step'?",
    ),
    "text for a profiler": Mistake(assigned("profiler", "simpl"), "profiler", "'simpl'", "Did you mean 'simple'?"),
    "class among the callbacks": Mistake(
        assigned("callbacks", [EarlyStopping]), "callbacks", "EarlyStopping", "create an object of it"
    ),
    "class appended to the callbacks": Mistake(appended, "callbacks", "EarlyStopping", "create an object of it"),
    "data set without items": Mistake(
        fitting(Bare(), items(0)), "train_dataloaders", "Its data set has no items", "check the path or the filter"
    ),
    "too few items for a batch": Mistake(
        fitting(Bare(), items(3, drop_last=True)),
        "train_dataloaders",
        "3 items",
        "batch_size=4, or set drop_last=False",
    ),
    "sampler without items": Mistake(
        fitting(Bare(), items(3, sampler=[])), "train_dataloaders", "3 items", "its sampler yields none"
    ),
    "validation without items": Mistake(
        lambda: trainer().validate(Net(), DataLoader(Subset(items(3).dataset, []))),
        "dataloaders: the validation loader",
        "Its data set has no items",
        "check the path or the filter",
    ),
    "unit of a duration": Mistake(lambda: Timer({"minute": 3}), "duration", "'minute'", "Did you mean 'minutes'?"),
    "text for a unit of a duration": Mistake(
        lambda: Timer({"minutes": "3"}),  # type: ignore[dict-item]
        "duration",
        "{'minutes': '3'}",
        "with numbers",
    ),
    "callback without a function": Mistake(LambdaCallback, "LambdaCallback", "no function", "on_train_epoch_end="),
    "number for a logger's folder": Mistake(
        lambda: CSVLogger(3),  # type: ignore[arg-type]
        "save_dir",
        "3",
        "must be a path",
    ),
    "text for an option of log": Mistake(
        logging(1.0, on_step="no"), "log('accuracy', on_step", "'no'", "True or False"
    ),
    "strategy among the plugins": Mistake(
        lambda: trainer(plugins="ddp"), "plugins", "'ddp' is of another kind", "Pass strategy='ddp'"
    ),
    "misspelt setting of data": Mistake(
        lambda: DataSettings(even_batch=False),  # type: ignore[call-arg]
        "DataSettings",
        "'even_batch'",
        "Did you mean 'even_batches'?",
    ),
    "misspelt setting of accumulation": Mistake(
        lambda: GradientAccumulationPlugin(steps=2),  # type: ignore[call-arg]
        "GradientAccumulationPlugin",
        "'steps'",
        "Did you mean 'num_steps'?",
    ),
    "misspelt setting of a project": Mistake(
        lambda: ProjectConfiguration(total_limits=2),  # type: ignore[call-arg]
        "ProjectConfiguration",
        "'total_limits'",
        "Did you mean 'total_limit'?",
    ),
    "name for a function in a notebook": Mistake(
        lambda: notebook_launcher("train"),  # type: ignore[arg-type]
        "notebook_launcher: function",
        "'train'",
        "notebook_launcher(train, (args, ...))",
    ),
    "number for a function of rank 0": Mistake(
        lambda: rank_zero_only(3),  # type: ignore[arg-type]
        "rank_zero_only",
        "got 3",
        "Write it above one",
    ),
    "number for a Trainer": Mistake(
        lambda: Tuner(3),  # type: ignore[arg-type]
        "Tuner: trainer",
        "type int",
        "Pass a core.Trainer",
    ),
    "text for a step": Mistake(
        lambda: CSVLogger("x").log_metrics({"a": 1}, "3"),  # type: ignore[arg-type]
        "log_metrics: step",
        "'3'",
        "an integer or None",
    ),
    "action before its signal": Mistake(
        lambda: trainer(signals={"stop": "SIGTERM"}), "signals", "'stop'", "{'SIGTERM': 'stop'}"
    ),
    "folder of a logger that cannot be": Mistake(
        fitting(Bare(), logger="csv", default_root_dir="/proc/nowhere"), "save_dir", "'/proc/nowhere'", "logger=False"
    ),
    "data set in a list": Mistake(
        fitting(Bare(), [items(3).dataset]), "train_dataloaders", "TensorDataset", "DataLoader(dataset, batch_size="
    ),
    "capitals of a plugin": Mistake(
        lambda: runtime(accelerator="CUDA"), "accelerator", "'CUDA'", "'cuda': pip install torch-hal-cuda"
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake(name: str) -> None:
    """The message names what is wrong, what was given, and what to do."""
    check(MISTAKES[name])


def test_names_of_the_users_own() -> None:
    """Counters, helpers whose names are like those of methods that are defined too, and names that are like none."""
    module = derived(Net, validation_steps=nothing, load=nothing, predicted=nothing)
    module.training_steps = module.test_steps = 3
    trainer().fit(module, loader(), loader())


def test_attributes_of_a_trainer_that_fit() -> None:
    """A name for a profiler and one callback are what the constructor takes."""
    fit = trainer()
    fit.profiler = "simple"  # type: ignore[assignment]
    fit.callbacks = LambdaCallback(on_fit_start=lambda *given: None)
    fit.fit(Bare(), loader())
    assert isinstance(fit.profiler, SimpleProfiler)
    assert [type(callback) for callback in fit.callbacks] == [LambdaCallback]


class Manual(Bare):
    """Optimizes by itself, or forgets to."""

    def __init__(self, steps: bool) -> None:
        super().__init__()
        self.automatic_optimization, self.steps = False, steps

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self.steps:
            optimizer = self.optimizers()
            self.manual_backward(super().training_step(batch, batch_idx))
            optimizer.step()


@pytest.mark.parametrize(("steps", "count"), [(False, 1), (True, 0)])
def test_manual_optimization_without_a_step(steps: bool, count: int, caplog: pytest.LogCaptureFixture) -> None:
    """One warning if no optimizer has been stepped in the first epoch."""
    trainer(max_epochs=2).fit(Manual(steps), loader())
    assert caplog.text.count("has not stepped an optimizer in epoch") == count


def test_validation_that_never_comes(caplog: pytest.LogCaptureFixture) -> None:
    """One warning if fit ends before the first epoch with validation."""
    for every, count in ((2, 0), (3, 1)):
        trainer(max_epochs=2, check_val_every_n_epoch=every).fit(Net(), loader(), loader())
        assert caplog.text.count("nothing is validated") == count


@pytest.mark.parametrize(
    ("module", "arguments", "count"),
    [(Net(), {}, 1), (Bare(), {}, 0), (Net(), {"limit_val_batches": 0}, 0)],
)
def test_validation_without_a_loader(
    module: Any, arguments: dict[str, Any], count: int, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning if a module could be validated and no loader is given; none if that is wanted."""
    trainer(**arguments).fit(module, loader())
    assert caplog.text.count("defines validation_step, but there is no validation loader") == count
