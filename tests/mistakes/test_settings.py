"""More usual mistakes, in settings, callbacks, loggers, checkpoints and calls of a front end.

Nothing here starts a process.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

from core import (
    DataModule,
    DistributedDataParallelKwargs,
    GradientAccumulationPlugin,
    ProjectConfiguration,
    Runtime,
    Trainer,
    notebook_launcher,
)
from core.callbacks import (
    EarlyStopping,
    GradientAccumulationScheduler,
    LambdaCallback,
    LearningRateMonitor,
    ModelCheckpoint,
    StochasticWeightAveraging,
    Timer,
)
from core.checkpoints import TorchCheckpointIO
from core.loggers import CSVLogger
from core.profilers import SimpleProfiler
from core.strategies import DDPStrategy

from .cases import Mistake, Net, check, loader, runtime, trainer
from .test_arguments import environment, given, logging, monitoring
from .test_loops import fit, net, prepared


def train(runtime: Runtime, epochs: int, rate: float) -> None:
    del runtime, epochs, rate


def scheduled(**settings: Any) -> None:
    """A fit with a scheduler, made from the optimizer, and its settings."""

    def configure_optimizers(self: Any) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        scheduler = settings.get("scheduler", ReduceLROnPlateau)
        made = scheduler if settings.get("as_class") else scheduler(optimizer)
        options = {name: value for name, value in settings.items() if name not in ("scheduler", "as_class")}
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": made, **options}}

    fit(net(configure_optimizers=configure_optimizers), fitting={"val_dataloaders": loader()})


def resumed(name: str, content: Any) -> Any:
    """A fit that resumes from a file of the folder."""

    def make(folder: Path) -> None:
        if isinstance(content, str):
            (folder / name).write_text(content, "utf-8")
        elif content is not None:
            torch.save(content, folder / name)
        trainer().fit(Net(), loader(), ckpt_path=folder / name)

    return make


class Wide(Net):
    """With another size."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)


def other_sizes(folder: Path) -> None:
    first = trainer()
    first.fit(Net(), loader())
    first.save_checkpoint(folder / "net.ckpt")
    trainer().fit(Wide(), loader(), ckpt_path=folder / "net.ckpt")


SETTINGS: dict[str, Mistake] = {
    # -- the Trainer
    "fraction of an epoch": Mistake(given(max_epochs=1.5), "max_epochs", "1.5", "an integer ≥ 0"),
    "negative epochs": Mistake(given(max_epochs=-2), "max_epochs", "-2", "-1 or None for no limit"),
    "steps as a text": Mistake(given(max_steps="100"), "max_steps", "'100'", "an integer ≥ 0"),
    "more epochs than the most": Mistake(
        given(min_epochs=5, max_epochs=2), "min_epochs=5", "max_epochs=2", "Lower the first, or raise the second"
    ),
    "more steps than the most": Mistake(
        given(min_steps=5, max_steps=2), "min_steps=5", "max_steps=2", "Lower the first, or raise the second"
    ),
    "negative log interval": Mistake(given(log_every_n_steps=-1), "log_every_n_steps", "-1", "an integer ≥ 1"),
    "a misspelt logger of two": Mistake(
        given(logger=["csv", "tensorbord"]), "logger", "'tensorbord'", "Did you mean 'tensorboard'?"
    ),
    "number for a logger": Mistake(given(logger=3), "logger", "3", "a name such as 'csv'"),
    "class for a logger": Mistake(given(logger=CSVLogger), "logger", "CSVLogger", "create an object of it"),
    "number for a profiler": Mistake(given(profiler=3), "profiler", "3", "a name such as 'simple'"),
    "negative fast_dev_run": Mistake(given(fast_dev_run=-1), "fast_dev_run", "-1", "a number of batches ≥ 1"),
    "text for fast_dev_run": Mistake(given(fast_dev_run="yes"), "fast_dev_run", "'yes'", "must be True, False"),
    "batches to overfit": Mistake(given(overfit_batches=2.5), "overfit_batches", "2.5", "a float from 0.0 to 1.0"),
    "text for deterministic": Mistake(given(deterministic="yes"), "deterministic", "'yes'", "must be True, False"),
    "text for benchmark": Mistake(given(benchmark="yes"), "benchmark", "'yes'", "must be True, False or None"),
    "text for inference_mode": Mistake(given(inference_mode="no"), "inference_mode", "'no'", "must be True or False"),
    "text for callbacks": Mistake(given(callbacks="early_stopping"), "callbacks", "'early_stopping'", "core.Callback"),
    "function for a callback": Mistake(given(callbacks=[len]), "callbacks", "len", "derived from core.Callback"),
    "checkpoints off and on": Mistake(
        given(enable_checkpointing=False, callbacks=ModelCheckpoint()),
        "enable_checkpointing",
        "False",
        "Remove one of the two",
    ),
    "fp16 for a precision": Mistake(given(precision="fp16"), "precision", "'fp16'", "'16-mixed'"),
    "number for a strategy": Mistake(given(strategy=3), "strategy", "3 of type int", "an instance of Strategy"),
    "misspelt checkpoint_io": Mistake(
        given(checkpoint_io="safetensor"), "checkpoint_io", "'safetensor'", "Did you mean 'safetensors'?"
    ),
    "misspelt cluster": Mistake(
        given(cluster_environment="slrm"), "cluster_environment", "'slrm'", "Did you mean 'slurm'?"
    ),
    "negative devices": Mistake(given(devices=-3), "devices", "-3", "-1 for all"),
    "texts for devices": Mistake(given(devices=["0"]), "devices", "['0']", "an integer >= 0"),
    "time limit of ddp": Mistake(
        lambda: DDPStrategy(timeout="5"),  # type: ignore[arg-type]
        "timeout",
        "'5'",
        "timedelta(minutes=30)",
    ),
    "collectives of another device": Mistake(
        given(devices=2, strategy=DDPStrategy(process_group_backend="nccl", timeout=timedelta(seconds=9))),
        "process_group_backend",
        "'nccl'",
        "'gloo'",
    ),
    "machines by variable": Mistake(environment(CORE_NUM_NODES="x"), "CORE_NUM_NODES", "'x'", "an integer ≥ 1"),
    "precision by variable": Mistake(environment(CORE_PRECISION="fp16"), "CORE_PRECISION", "'fp16'", "'16-mixed'"),
    # -- callbacks and loggers
    "metric that is not logged": Mistake(
        monitoring(ModelCheckpoint("/nowhere", monitor="acc"), enable_checkpointing=True),
        "ModelCheckpoint(monitor",
        "'acc'",
        "Log it with self.log",
    ),
    "mode of checkpoints": Mistake(
        lambda: ModelCheckpoint(monitor="loss", mode="maximum"), "mode", "'maximum'", "'min' or 'max'"
    ),
    "number of checkpoints": Mistake(
        lambda: ModelCheckpoint(monitor="loss", save_top_k=-2), "save_top_k", "-2", "an integer ≥ -1"
    ),
    "two intervals of checkpoints": Mistake(
        lambda: ModelCheckpoint(every_n_train_steps=1, every_n_epochs=1),
        "every_n_train_steps=1",
        "every_n_epochs=1",
        "give one of them",
    ),
    "misspelt argument of checkpoints": Mistake(
        lambda: ModelCheckpoint(save_topk=1),  # type: ignore[call-arg]
        "ModelCheckpoint",
        "'save_topk'",
        "Did you mean 'save_top_k'",
    ),
    "folder of checkpoints": Mistake(
        lambda: ModelCheckpoint(3),  # type: ignore[arg-type]
        "dirpath",
        "3",
        "must be a path",
    ),
    "negative patience": Mistake(lambda: EarlyStopping("loss", patience=-1), "patience", "-1", "an integer ≥ 0"),
    "patience as a text": Mistake(
        lambda: EarlyStopping("loss", patience="3"),  # type: ignore[arg-type]
        "patience",
        "'3'",
        "an integer ≥ 0",
    ),
    "misspelt argument to stop by": Mistake(
        lambda: EarlyStopping("loss", patence=3),  # type: ignore[call-arg]
        "EarlyStopping",
        "'patence'",
        "Did you mean 'patience'?",
    ),
    "interval of learning rates": Mistake(
        lambda: LearningRateMonitor(logging_interval="batch"), "logging_interval", "'batch'", "'step', 'epoch' or None"
    ),
    "learning rates for no logger": Mistake(
        lambda: fit(Net(), callbacks=LearningRateMonitor()), "LearningRateMonitor", "no logger", "Set logger"
    ),
    "duration as prose": Mistake(lambda: Timer("1h"), "duration", "'1h'", "DD:HH:MM:SS"),
    "schedule of no batches": Mistake(
        lambda: GradientAccumulationScheduler({0: 0}), "scheduling", "{0: 0}", "such as {4: 2}"
    ),
    "rate of averaging": Mistake(
        lambda: StochasticWeightAveraging(swa_lrs="high"),  # type: ignore[arg-type]
        "swa_lrs",
        "'high'",
        "a number > 0",
    ),
    "hook of a function": Mistake(
        lambda: LambdaCallback(on_epoch_end=print),
        "LambdaCallback",
        "'on_epoch_end'",
        "'on_train_epoch_end'",
    ),
    "number for a function": Mistake(
        lambda: LambdaCallback(on_fit_start=3),  # type: ignore[arg-type]
        "on_fit_start",
        "3",
        "must be a function",
    ),
    "misspelt argument of a logger": Mistake(
        lambda: CSVLogger("x", flush_logs_every_n_step=1),  # type: ignore[call-arg]
        "CSVLogger",
        "'flush_logs_every_n_step'",
        "Did you mean 'flush_logs_every_n_steps'?",
    ),
    "list for metrics": Mistake(
        lambda: CSVLogger("x").log_metrics([1, 2]),  # type: ignore[arg-type]
        "metrics",
        "[1, 2]",
        "a mapping of names to values",
    ),
    # -- fit and modules
    "saving before fit": Mistake(
        lambda: trainer().save_checkpoint("x"), "save_checkpoint", "no fit has been run", "Call fit before"
    ),
    "number for a checkpoint": Mistake(
        lambda: trainer().fit(Net(), loader(), ckpt_path=3),  # type: ignore[arg-type]
        "ckpt_path",
        "3",
        "must be a path",
    ),
    "loading into an object": Mistake(
        lambda: Net().load_from_checkpoint("x"), "load_from_checkpoint", "called on an object", "Net.load_from_check"
    ),
    "unknown hyperparameter": Mistake(
        lambda: Net().save_hyperparameters("lr"), "save_hyperparameters('lr')", "no argument 'lr'", "Arguments: none"
    ),
    "list for log_dict": Mistake(
        lambda: fit(net(training_step=lambda self, batch, batch_idx: self.log_dict([1]))),
        "log_dict",
        "[1]",
        "a mapping of names",
    ),
    "scheduler without a metric": Mistake(scheduled, "ReduceLROnPlateau", "'monitor' does not say which", "'val_loss'"),
    "metric of a scheduler": Mistake(
        lambda: scheduled(monitor="val_los"), "monitors", "'val_los'", "Log it with self.log"
    ),
    "interval of a scheduler": Mistake(
        lambda: scheduled(scheduler=lambda own: StepLR(own, 1), interval="batch"), "interval", "'batch'", "'epoch' or"
    ),
    "class for a scheduler": Mistake(
        lambda: scheduled(scheduler=StepLR, as_class=True), "configure_optimizers", "StepLR", "Return an optimizer"
    ),
    "misspelt key of an optimizer": Mistake(
        lambda: fit(net(configure_optimizers=lambda self: {"optimiser": None})),
        "configure_optimizers",
        "'optimiser'",
        "{'optimizer': ...",
    ),
    "backward by hand": Mistake(
        lambda: fit(net(training_step=lambda self, batch, batch_idx: self.manual_backward(self.loss(batch)))),
        "manual_backward",
        "the Trainer calls backward itself",
        "self.automatic_optimization = False",
    ),
    "no module": Mistake(
        lambda: trainer().fit(None, loader()),  # type: ignore[arg-type]
        "model",
        "NoneType",
        "must be a core.Module",
    ),
    "data set for a loader": Mistake(
        lambda: fit(Net(), loader().dataset), "train_dataloaders", "type TensorDataset", "must be a torch DataLoader"
    ),
    "loaders and a DataModule": Mistake(
        lambda: trainer().fit(Net(), loader(), datamodule=DataModule()),
        "train_dataloaders",
        "and a DataModule were given",
        "Pass one of the two",
    ),
    "DataModule without data": Mistake(
        lambda: trainer().fit(Net(), datamodule=DataModule()), "fit", "there is no loader", "define train_dataloader"
    ),
    "one name logged in two ways": Mistake(
        lambda: fit(net(training_step=lambda self, batch, i: self.log("a", 1.0, on_epoch=i > 0) or self.loss(batch))),
        "log('a')",
        "on_epoch=True (before: False)",
        "use another name",
    ),
    "metric of two values in an epoch": Mistake(logging([1.0, 2.0]), "log('accuracy')", "[1.0, 2.0]", "a number"),
    # -- the Runtime
    "accumulation as a text": Mistake(
        lambda: Runtime(accelerator="cpu", gradient_accumulation_steps="2"),  # type: ignore[arg-type]
        "gradient_accumulation_steps",
        "'2'",
        "an integer ≥ 1",
    ),
    "gathering a text": Mistake(
        lambda: prepared(lambda run, model, optimizer: run.gather("x")), "gather", "'x'", "gather_object"
    ),
    "dividing a number": Mistake(
        lambda: prepared(lambda run, model, optimizer: run.split_between_processes(3).__enter__()),
        "split_between_processes",
        "type int",
        "Pass a list",
    ),
    "misspelt tracker": Mistake(
        lambda: runtime(log_with="tensorbord").init_trackers("x"), "log_with", "'tensorbord'", "'tensorboard'"
    ),
    "tracker that is not there": Mistake(
        lambda: runtime().get_tracker("wandb"), "get_tracker('wandb')", "no such tracker", "Trackers: none"
    ),
    "weights of no module": Mistake(
        lambda: runtime().save_model("net", "x"),  # type: ignore[arg-type]
        "save_model: model",
        "type str",
        "Pass a module",
    ),
    "state without methods": Mistake(
        lambda: runtime().register_for_checkpointing(3), "register_for_checkpointing", "int", "have both methods"
    ),
    "negative number of batches": Mistake(
        lambda: runtime().skip_first_batches(loader(), -1), "num_batches", "-1", "an integer ≥ 0"
    ),
    "number for the loop": Mistake(
        lambda: runtime().launch(3),  # type: ignore[arg-type]
        "launch: function",
        "3",
        "runtime.launch(train)",
    ),
    "function without the Runtime": Mistake(
        lambda: runtime().launch(lambda: None),
        "launch",
        "() cannot be called",
        "It gets the Runtime first: def train(runtime, ...)",
    ),
    "function of more arguments": Mistake(
        lambda: runtime().launch(train, 1),
        "launch",
        "train(runtime, epochs, rate)",
        "missing a required argument",
    ),
    "function of fewer arguments": Mistake(
        lambda: runtime().launch(train, 1, 2, 3), "launch", "train(runtime, epochs, rate)", "too many positional"
    ),
    "misspelt argument of the function": Mistake(
        lambda: runtime().launch(train, 1, rte=2), "launch", "train(runtime, epochs, rate)", "def train(runtime, ...)"
    ),
    "class for the loop": Mistake(
        lambda: runtime().launch(Net),
        "launch",
        "Net()",
        "def train(runtime, ...)",
    ),
    "arguments of a notebook's function": Mistake(
        lambda: notebook_launcher(train, (1,), num_processes=1),
        "notebook_launcher",
        "train(runtime, epochs, rate)",
        "notebook_launcher(train, (first, ...))",
    ),
    "class for a tracker": Mistake(
        lambda: runtime(log_with=CSVLogger), "log_with", "CSVLogger", "create an object of it: CSVLogger(...)"
    ),
    "class for a profiler": Mistake(
        given(profiler=SimpleProfiler), "profiler", "SimpleProfiler", "create an object of it: SimpleProfiler(...)"
    ),
    "class for a plugin": Mistake(
        given(plugins=[TorchCheckpointIO]), "plugins", "TorchCheckpointIO", "object of it: TorchCheckpointIO(...)"
    ),
    "class for a strategy": Mistake(
        given(strategy=DDPStrategy), "strategy", "the class DDPStrategy", "create an object of it: DDPStrategy(...)"
    ),
    "class for the settings of accumulation": Mistake(
        lambda: runtime(gradient_accumulation_plugin=GradientAccumulationPlugin),
        "gradient_accumulation_plugin",
        "GradientAccumulationPlugin",
        "create an object of it: GradientAccumulationPlugin(...)",
    ),
    "class for the settings of a project": Mistake(
        lambda: runtime(project_config=ProjectConfiguration),
        "project_config",
        "ProjectConfiguration",
        "create an object of it: ProjectConfiguration(...)",
    ),
    "class for a handler": Mistake(
        lambda: runtime(kwargs_handlers=[DistributedDataParallelKwargs]),
        "kwargs_handlers",
        "the class DistributedDataParallelKwargs",
        "create an object of it: DistributedDataParallelKwargs(...)",
    ),
    "process that is not there": Mistake(
        lambda: runtime().broadcast(torch.ones(1), 5), "from_process", "5", "the number of a process, 0 to 0"
    ),
}

IN_A_FOLDER: dict[str, tuple[Any, str, str, str]] = {
    "folder for a checkpoint": (resumed(".", None), "ckpt_path", "is not a committed checkpoint", "Pass the path"),
    "checkpoint that is not there": (resumed("gone.ckpt", None), "ckpt_path", "it does not exist", "Pass the path"),
    "text for a checkpoint": (resumed("x.ckpt", "hello"), "x.ckpt", "is a file", "checkpoint_io=..."),
    "values of torch.save": (resumed("x.pt", {"a": 1}), "x.pt", "has no 'progress'", "one that a Trainer has written"),
    "weights for a whole run": (
        resumed("x.pt", Net().state_dict()),
        "x.pt",
        "its weights alone",
        "load_from_checkpoint(path)",
    ),
    "checkpoint of other sizes": (other_sizes, "net.ckpt", "layer.weight", "with the same sizes"),
}
"""Mistakes that are made with the path of a folder."""


@pytest.mark.parametrize("name", SETTINGS)
def test_mistake(name: str) -> None:
    """The message names what is wrong, what was given, and what to do."""
    check(SETTINGS[name])


@pytest.mark.parametrize("name", IN_A_FOLDER)
def test_mistake_in_a_folder(name: str, tmp_path: Path) -> None:
    """So does one about a checkpoint, with its path."""
    make, argument, given, remedy = IN_A_FOLDER[name]
    check(Mistake(lambda: make(tmp_path), str(tmp_path) if argument == "ckpt_path" else argument, given, remedy))


def test_a_constructor_of_the_users_own_names_arguments_too() -> None:
    """A Callback that a user derives; a TypeError from within stays what it is."""

    class Mine(EarlyStopping):
        def __init__(self, threshold: float = 0.1) -> None:
            super().__init__("loss")
            len(threshold)  # type: ignore[arg-type]

    with pytest.raises(TypeError, match=r"unknown argument 'treshold'\. Did you mean 'threshold'"):
        Mine(treshold=1.0)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="has no len"):
        Mine(threshold=1.0)


def test_limits_that_fit() -> None:
    """A minimum without a maximum, or equal to it, is no mistake."""
    for arguments in ({"min_epochs": 5}, {"min_epochs": 2, "max_epochs": 2}, {"min_steps": 9, "max_steps": -1}):
        Trainer(accelerator="cpu", devices=1, **arguments)  # type: ignore[arg-type]
