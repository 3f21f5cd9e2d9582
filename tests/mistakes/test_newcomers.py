"""Mistakes of users of Lightning, Accelerate, Transformers and Keras, and of those who mix both front ends."""

from __future__ import annotations

import logging
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import RandomSampler

from core import (
    Accelerator,
    Callback,
    DataModule,
    DummyOptim,
    DummyScheduler,
    LocalSGD,
    Module,
    ProjectConfiguration,
    Runtime,
    skip_first_batches,
)
from core.callbacks import EarlyStopping, ModelCheckpoint
from core.errors import UnknownNameError
from core.loggers import CSVLogger, TensorBoardLogger

from .cases import Mistake, Net, check, loader, runtime, trainer
from .test_arguments import environment, given
from .test_loops import fit, net, prepared, with_callback


def assigning(name: str, value: Any) -> Any:
    """A Module whose constructor assigns an attribute, in a fit."""

    class Mine(Net):
        def __init__(self) -> None:
            super().__init__()
            setattr(self, name, value)

    return lambda: fit(Mine())


def with_data(**members: Any) -> Any:
    return lambda: trainer().fit(Net(), type("Data", (DataModule,), members)())


def prepared_module_in_fit() -> None:
    with runtime(precision="bf16-mixed") as run:
        trainer().fit(run.prepare(Net()), loader())


def unprepared_optimizer() -> None:
    with runtime(gradient_accumulation_steps=2) as run:
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model = run.prepare(model)
        with run.accumulate(model):
            run.backward(model(torch.ones(2, 3)).mean())
            optimizer.step()


SGD = torch.optim.SGD(nn.Linear(3, 1).parameters(), lr=0.1)

MISTAKES: dict[str, Mistake] = {
    # -- names of other libraries
    "Accelerator of Accelerate": Mistake(
        lambda: Accelerator(mixed_precision="bf16"),  # type: ignore[abstract]
        "core.Accelerator",
        "'mixed_precision'",
        "from core import Runtime as Accelerator",
    ),
    "nothing for an Accelerator": Mistake(
        lambda: Accelerator(),  # type: ignore[abstract]
        "core.Accelerator",
        "no arguments",
        "from core import Runtime as Accelerator",
    ),
    "vendor for an accelerator": Mistake(
        given(accelerator="nvidia"), "accelerator", "'nvidia'", "Did you mean 'cuda'? Not installed: 'cuda': pip"
    ),
    "device for an accelerator": Mistake(
        given(accelerator="cuda:1"), "accelerator", "'cuda:1'", "Devices are chosen by devices=[1]"
    ),
    "device among devices": Mistake(
        given(accelerator="cpu", devices="cuda:1"), "devices", "'cuda:1'", "Set accelerator='cuda' and devices=[1]."
    ),
    "torch's device": Mistake(
        given(accelerator=torch.device("cpu")), "accelerator", "device(type='cpu')", "Set accelerator='cpu'."
    ),
    "torch's dtype": Mistake(
        given(precision=torch.bfloat16),
        "precision",
        "torch.bfloat16",
        "precision='bf16-mixed' or precision='bf16-true'",
    ),
    "folder for a loader": Mistake(
        lambda: trainer().fit(Net(), "data/train"), "train_dataloaders", "type str", "must be a torch DataLoader"
    ),
    "function for a loader": Mistake(
        lambda: trainer().fit(Net(), loader),
        "train_dataloaders",
        "type function",
        "pass what it returns, as in loader()",
    ),
    "loader that is not returned": Mistake(
        with_data(train_dataloader=lambda self: None), "Data.train_dataloader", "NoneType", "ends with `return loader`"
    ),
    "dict for log": Mistake(
        lambda: fit(net(training_step=lambda self, batch, batch_idx: self.log({"a": 1}))),
        "Module.log",
        "a dict",
        "Module.log_dict(values)",
    ),
    "letters in a key": Mistake(
        lambda: fit(net(configure_optimizers=lambda self: {"optimizer": SGD, "lr_schedular": None})),
        "configure_optimizers",
        "'lr_schedular'",
        "Did you mean 'lr_scheduler'?",
    ),
    "stage of ZeRO": Mistake(given(strategy="zero3"), "strategy", "'zero3'", "Did you mean 'deepspeed_stage_3'?"),
    "Lightning's older name": Mistake(
        given(strategy="fsdp_native"), "strategy", "'fsdp_native'", "'fsdp': pip install torch-hal-fsdp"
    ),
    "dtype's name for a precision": Mistake(
        given(precision="float16"), "precision", "'float16'", "Did you mean '16-mixed'?"
    ),
    "fp8": Mistake(given(precision="fp8"), "precision", "'fp8'", "'fp8-mixed': pip install torch-hal-torchao"),
    "torch-hal's name of a precision": Mistake(
        lambda: runtime(mixed_precision="bf16-mixed"), "mixed_precision", "'bf16-mixed'", "Others are precision=..."
    ),
    "distribution's prefix of a variable": Mistake(
        environment(TORCH_HAL_DEVICES="2"), "TORCH_HAL_DEVICES", "'2'", "Did you mean 'CORE_DEVICES'?"
    ),
    # -- arguments of other front ends
    "number of GPUs": Mistake(given(n_gpu=8), "Trainer", "'n_gpu'", "Set devices=, and accelerator="),
    "memory of a GPU": Mistake(given(log_gpu_memory="all"), "Trainer", "'log_gpu_memory'", "DeviceStatsMonitor()"),
    "interval of writing": Mistake(
        given(flush_logs_every_n_steps=1), "Trainer", "'flush_logs_every_n_steps'", "Set it in the logger"
    ),
    "mode of several loaders": Mistake(
        given(multiple_trainloader_mode="min_size"), "Trainer", "'multiple_trainloader_mode'", "CombinedLoader(loaders,"
    ),
    "setting of a DataModule for a Trainer": Mistake(
        given(prepare_data_per_node=True), "Trainer", "'prepare_data_per_node'", "an attribute of the DataModule"
    ),
    "seed of a Trainer": Mistake(given(seed=1), "Trainer", "'seed'", "Call core.seed_everything(seed)"),
    "CPU for a Trainer": Mistake(given(cpu=True), "Trainer", "'cpu'", "Set accelerator='cpu'"),
    "folder of Transformers": Mistake(given(output_dir="x"), "Trainer", "'output_dir'", "Set default_root_dir="),
    "epochs of Transformers": Mistake(given(num_train_epochs=3), "Trainer", "'num_train_epochs'", "Set max_epochs="),
    "batch size of Transformers": Mistake(
        given(per_device_train_batch_size=8), "Trainer", "'per_device_train_batch_size'", "Set it in the DataLoader"
    ),
    "data set of Transformers": Mistake(
        given(train_dataset=[]), "Trainer", "'train_dataset'", "Make a DataLoader of it"
    ),
    "metrics of Transformers": Mistake(
        given(compute_metrics=len), "Trainer", "'compute_metrics'", "Log the metrics in validation_step"
    ),
    "backend of torch.distributed": Mistake(
        given(backend="nccl"), "Trainer", "'backend'", "DDPStrategy(process_group_backend=...)"
    ),
    "norm to clip by": Mistake(given(max_grad_norm=1.0), "Trainer", "'max_grad_norm'", "Set gradient_clip_val="),
    "callbacks of a Runtime": Mistake(
        lambda: runtime(callbacks=[]), "Runtime", "'callbacks'", "Call your functions in the loop"
    ),
    "loggers of Fabric": Mistake(lambda: runtime(loggers=[]), "Runtime", "'loggers'", "Set log_with="),
    "plugins of Fabric": Mistake(lambda: runtime(plugins=[]), "Runtime", "'plugins'", "Pass each by its kind"),
    "accumulation of Lightning": Mistake(
        lambda: runtime(accumulate_grad_batches=2),
        "Runtime",
        "'accumulate_grad_batches'",
        "Set gradient_accumulation_steps=",
    ),
    "callbacks of fit": Mistake(
        lambda: fit(Net(), fitting={"callbacks": []}),
        "Trainer.fit",
        "'callbacks'",
        "Pass it to the constructor: Trainer(",
    ),
    "older name for epochs of checkpoints": Mistake(
        lambda: ModelCheckpoint(period=2),  # type: ignore[call-arg]
        "ModelCheckpoint",
        "'period'",
        "Set every_n_epochs=",
    ),
    "only the best of Keras": Mistake(
        lambda: ModelCheckpoint(save_best_only=True),  # type: ignore[call-arg]
        "ModelCheckpoint",
        "'save_best_only'",
        "Set monitor= to the metric",
    ),
    "best weights of Keras": Mistake(
        lambda: EarlyStopping("loss", restore_best_weights=True),  # type: ignore[call-arg]
        "EarlyStopping",
        "'restore_best_weights'",
        "ckpt_path='best'",
    ),
    "mode without a metric": Mistake(lambda: ModelCheckpoint(mode="max"), "mode='max'", "monitor=None", "Give monitor"),
    "logger without a folder": Mistake(
        lambda: TensorBoardLogger(),  # type: ignore[call-arg]
        "TensorBoardLogger",
        "missing a required argument",
        "'save_dir'",
    ),
    "step of a value": Mistake(
        lambda: fit(net(training_step=lambda self, batch, i: self.log("a", 1.0, step=i))),
        "Module.log",
        "'step'",
        "The Trainer counts the steps",
    ),
    # -- hooks of other libraries
    "hook of Transformers": Mistake(
        lambda: with_callback(on_step_end=lambda self, *given: None), "Mine", "'on_step_end'", "Use on_train_batch_end"
    ),
    "hook of Keras": Mistake(
        lambda: with_callback(on_epoch_begin=lambda self, *given: None),
        "Mine",
        "'on_epoch_begin'",
        "Use on_train_epoch_start",
    ),
    "older hook of a callback": Mistake(
        lambda: with_callback(on_init_end=lambda self, trainer: None), "Mine", "'on_init_end'", "Do this in setup"
    ),
    "older hook of a module": Mistake(
        lambda: fit(net(on_epoch_start=lambda self: None)), "Net", "'on_epoch_start'", "Use on_train_epoch_start"
    ),
    # -- attributes of a module
    "own logger": Mistake(
        assigning("logger", logging.getLogger("mine")), "Mine.logger", "<Logger mine", "Set Trainer(logger=...)"
    ),
    "own device": Mistake(assigning("device", "cpu"), "Mine.device", "'cpu'", "the strategy moves them"),
    "own dtype": Mistake(assigning("dtype", torch.float16), "Mine.dtype", "torch.float16", "Set precision="),
    "own counter": Mistake(assigning("global_step", 0), "Mine.global_step", "0", "Use another name"),
    "own hyperparameters": Mistake(
        assigning("hparams", {"lr": 0.1}), "Mine.hparams", "{'lr': 0.1}", "Call self.save_hyperparameters("
    ),
    "list in place of a method": Mistake(
        assigning("log", []), "Mine.log", "[] of type list", "Otherwise use another name"
    ),
    "switch in place of a hook": Mistake(assigning("setup", True), "Mine.setup", "True", "def setup(self, ...)"),
    "list in place of the parameters": Mistake(
        assigning("parameters", []), "Mine.parameters", "[]", "Otherwise use another name"
    ),
    "loader in place of a method": Mistake(
        with_data(train_dataloader=loader()), "Data.train_dataloader", "DataLoader", "def train_dataloader(self, ...)"
    ),
    "property in place of a method": Mistake(
        with_data(train_dataloader=property(lambda self: loader())),
        "Data.train_dataloader",
        "a property",
        "def train_dataloader(self, ...)",
    ),
    "state in place of a callback's method": Mistake(
        lambda: with_callback(state_dict={}), "Mine.state_dict", "{} of type dict", "Otherwise use another name"
    ),
    "hyperparameter that was not saved": Mistake(lambda: Net().hparams.lr, "hparams", "'lr'", "save_hyperparameters()"),
    # -- fit, and checkpoints of others
    "path for a module": Mistake(
        lambda: trainer().fit("net.ckpt", loader()),  # type: ignore[arg-type]
        "model",
        "type str",
        "a checkpoint as ckpt_path=",
    ),
    "state for a module": Mistake(
        lambda: trainer().fit(Net().state_dict(), loader()),  # type: ignore[arg-type]
        "model",
        "Dict",
        "module.load_state_dict(state)",
    ),
    "several modules": Mistake(
        lambda: trainer().fit([Net(), Net()], loader()),  # type: ignore[arg-type]
        "model",
        "type list",
        "Pass one module",
    ),
    "network without steps": Mistake(
        lambda: trainer().fit(nn.Sequential(nn.Linear(3, 1)), loader()),
        "module: Sequential",
        "'training_step', 'configure_optimizers'",
        "a loop of your own with core.Runtime",
    ),
    "misspelt last": Mistake(
        lambda: trainer().fit(Net(), loader(), ckpt_path="lastest"), "ckpt_path", "'lastest'", "Did you mean 'last'?"
    ),
    "no path for a checkpoint": Mistake(
        lambda: trainer().save_checkpoint(None),  # type: ignore[arg-type]
        "filepath",
        "None",
        "must be a path",
    ),
    "base class for a checkpoint": Mistake(
        lambda: Module.load_from_checkpoint("net.ckpt"),
        "load_from_checkpoint",
        "called on core.Module",
        "MyModule.load_from_checkpoint(path)",
    ),
    # -- both front ends
    "module of a Runtime in fit": Mistake(
        prepared_module_in_fit, "model", "the Net was prepared by a Runtime", "runtime.unwrap_model(model)"
    ),
    "Trainer in prepare": Mistake(lambda: runtime().prepare(trainer()), "prepare", "type Trainer", "Use either"),
    "DataModule in prepare": Mistake(
        lambda: runtime().prepare(DataModule()), "prepare", "type DataModule", "data.train_dataloader()"
    ),
    "callback in prepare": Mistake(
        lambda: runtime().prepare(EarlyStopping("loss")),
        "prepare",
        "type EarlyStopping",
        "A Runtime calls no callbacks",
    ),
    "logger in prepare": Mistake(
        lambda: runtime().prepare(CSVLogger("x")), "prepare", "type CSVLogger", "Runtime(log_with=...)"
    ),
    "sampler in prepare": Mistake(
        lambda: runtime().prepare(RandomSampler(range(3))),
        "prepare",
        "type RandomSampler",
        "DataLoader(dataset, sampler=",
    ),
    "optimizer that stands for the engine's": Mistake(
        lambda: runtime().prepare(type("DummyOptim", (), {})()),
        "prepare",
        "type DummyOptim",
        "Create the optimizer of torch, and prepare it: also with the strategies of DeepSpeed.",
    ),
    "stand-in for the engine's optimizer": Mistake(
        lambda: DummyOptim(Net().parameters(), lr=0.1), "DummyOptim", "stands for no object", "the optimizer of torch"
    ),
    "stand-in for the engine's scheduler": Mistake(
        lambda: DummyScheduler(None, 10), "DummyScheduler", "stands for no object", "the scheduler of torch"
    ),
    "scaler in prepare": Mistake(
        lambda: runtime().prepare(nn.Linear(1, 1), torch.amp.GradScaler("cpu")),
        "prepare",
        "type GradScaler",
        "precision='16-mixed'",
    ),
    "callback for a tracker": Mistake(
        lambda: runtime(log_with=EarlyStopping("loss")), "log_with", "EarlyStopping", "Pass a name"
    ),
    # -- own loops
    "order of Fabric's save": Mistake(
        lambda: runtime().save("x", {"model": 1}),  # type: ignore[arg-type]
        "save: obj",
        "the path 'x'",
        "save(obj, path)",
    ),
    "swapped arguments of load": Mistake(
        lambda: runtime().load({"model": nn.Linear(1, 1)}, "x"),  # type: ignore[arg-type]
        "load: path",
        "a mapping with 'model'",
        "load(path, state)",
    ),
    "optimizer by itself": Mistake(lambda: runtime().save(SGD, "x.pt"), "save", "type SGD", "'optimizer': optimizer"),
    "scheduler by itself": Mistake(
        lambda: runtime().save(StepLR(SGD, 1), "x.pt"), "save", "type StepLR", "Give the parts names"
    ),
    "two folders of a project": Mistake(
        lambda: runtime(project_dir="a", project_config=ProjectConfiguration("b")), "project_dir='a'", "'b'", "Give one"
    ),
    "text for a dimension": Mistake(
        lambda: prepared(lambda run, model, optimizer: run.pad_across_processes(torch.ones(2), dim="0")),
        "pad_across_processes: dim",
        "'0'",
        "an integer",
    ),
    "swapped arguments of LocalSGD": Mistake(
        lambda: LocalSGD(nn.Linear(1, 1), runtime(), 8),  # type: ignore[arg-type]
        "LocalSGD: accelerator",
        "type Linear",
        "The Runtime comes first",
    ),
    "data set for skip_first_batches": Mistake(
        lambda: skip_first_batches(loader().dataset, 1), "loader", "type TensorDataset", "DataLoader(dataset"
    ),
    "optimizer that was not prepared": Mistake(
        unprepared_optimizer, "accumulate", "no optimizer was prepared", "runtime.prepare(model, optimizer)"
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake(name: str) -> None:
    """The message names what is wrong, what was given, and what to do."""
    check(MISTAKES[name])


def test_state_of_a_run_for_a_trainer(tmp_path: Path) -> None:
    """What ``save_state`` wrote is for ``load_state``; the message does not say to set a CheckpointIO of that name."""
    with runtime() as run:
        run.prepare(Net())
        state = run.save_state(tmp_path / "state")
    check(
        Mistake(
            lambda: trainer().fit(Net(), loader(), ckpt_path=state),
            str(tmp_path),
            "Runtime.save_state has written",
            "runtime.load_state(path)",
        )
    )


def test_unknown_hyperparameter_for_load_from_checkpoint(tmp_path: Path) -> None:
    """An argument that the constructor does not have is named, with those that it has."""
    fitted = trainer()
    fitted.fit(Net(), loader())
    fitted.save_checkpoint(tmp_path / "net.ckpt")
    check(
        Mistake(
            lambda: Net.load_from_checkpoint(tmp_path / "net.ckpt", width=3),
            "load_from_checkpoint",
            "'width'",
            "Arguments of Net: none",
        )
    )


def test_what_is_no_mistake() -> None:
    """Functions in place of methods, properties of the user's own, and counters of other names."""

    class Mine(Net):
        def __init__(self) -> None:
            super().__init__()
            self.print = print  # type: ignore[method-assign]
            self.steps = 0

        @cached_property
        def width(self) -> int:
            return 3

        @staticmethod
        def forward(inputs: Any) -> Any:
            return inputs

    fit(Mine(), callbacks=type("Mine", (Callback,), {"state": property(lambda self: 3)})())


def test_steps_in_a_window_by_hand() -> None:
    """An optimizer that was not prepared may step after the last micro-batch of a window."""
    with runtime(gradient_accumulation_steps=2) as run:
        model = run.prepare(nn.Linear(3, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        before = model.weight.clone()
        for _ in range(2):
            with run.accumulate(model):
                run.backward(model(torch.ones(2, 3)).mean())
                if run.sync_gradients:
                    optimizer.step()
        assert torch.allclose(model.weight, before - 0.1)


def test_an_accelerator_of_a_vendor() -> None:
    """A subclass can be created, and takes its own arguments."""

    class Acme(Accelerator):
        def __init__(self, cards: int) -> None:
            self.cards = cards

        def is_available(self) -> bool:
            return True

        def auto_device_count(self) -> int:
            return self.cards

        def get_parallel_devices(self, devices: list[int]) -> list[torch.device]:
            return [torch.device("cpu") for _ in devices]

    assert Acme(cards=3).auto_device_count() == 3


def test_two_trackers_of_one_kind(tmp_path: Path) -> None:
    """Both write; the second one took the first one's place."""
    run = Runtime(
        accelerator="cpu",
        devices=1,
        log_with=[CSVLogger(tmp_path / "a"), CSVLogger(tmp_path / "b"), "csv"],
        project_dir=tmp_path,
    )
    run.init_trackers("c")
    run.log({"loss": 0.5})
    run.end_training()
    assert len(list(tmp_path.rglob("metrics.csv"))) == 3


def test_what_is_no_device() -> None:
    """Without a number behind the colon, the name is any other unknown one."""
    with pytest.raises(UnknownNameError, match="'cpu:x'") as caught:
        given(accelerator="cpu:x")()
    assert "devices=" not in str(caught.value)
