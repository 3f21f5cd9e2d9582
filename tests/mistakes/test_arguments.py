"""Usual mistakes in arguments, commands and settings: the message has the argument, what was given, the remedy.

With :mod:`tests.mistakes.test_loops` these are the mistakes that were made on purpose when torch-hal was tried by new
users. Nothing here starts a process.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from core import DataModule, Runtime, Trainer, seed_everything
from core.callbacks import EarlyStopping, ModelCheckpoint
from core.plan import Request, resolve
from core.strategies import DDPStrategy

from . import test_loops
from .cases import Mistake, Net, check, loader, runtime, trainer


def given(**arguments: Any) -> Any:
    return lambda: Trainer(**{"accelerator": "cpu", "devices": 1, **arguments})


def environment(**variables: str) -> Any:
    return lambda: resolve(Request.read(environ=variables))


def logging(value: Any, name: Any = "accuracy", **options: Any) -> Any:
    def training_step(self: Any, batch: Any, batch_idx: int) -> Any:
        self.log(name, value, **options)
        return self.loss(batch)

    module = type("Logging", (Net,), {"training_step": training_step})
    return lambda: trainer().fit(module(), loader())


def monitoring(callback: Any, **arguments: Any) -> Any:
    return lambda: trainer(callbacks=callback, **arguments).fit(Net(), loader(), loader())


MISTAKES: dict[str, Mistake] = {
    # -- what to run on
    "plugin of an accelerator": Mistake(
        given(accelerator="cuda"), "accelerator", "'cuda'", "pip install torch-hal-cuda"
    ),
    "alias of two plugins": Mistake(
        given(accelerator="gpu"), "accelerator", "'gpu'", "/plugins/cuda or pip install torch-hal-mps@"
    ),
    "misspelt accelerator": Mistake(given(accelerator="cpuu"), "accelerator", "'cpuu'", "Did you mean 'cpu'?"),
    "class for an accelerator": Mistake(
        given(accelerator=nn.Linear), "accelerator", "the class Linear", "an instance of Accelerator"
    ),
    "plugin of a strategy": Mistake(
        given(strategy="deepspeed"), "strategy", "'deepspeed'", "pip install torch-hal-deepspeed"
    ),
    "misspelt strategy of a plugin": Mistake(given(strategy="deepseed"), "strategy", "'deepseed'", "'deepspeed': pip"),
    "misspelt strategy": Mistake(given(strategy="ddpp"), "strategy", "'ddpp'", "Did you mean 'ddp'"),
    "class for a strategy": Mistake(
        given(strategy=DDPStrategy), "strategy", "the class DDPStrategy", "an instance of Strategy"
    ),
    "strategy for one process": Mistake(
        given(strategy="single_device", devices=2), "'single_device' runs on 1 process", "devices=2", "Set devices=1"
    ),
    "misspelt argument of a strategy": Mistake(
        lambda: DDPStrategy(find_unused_parameter=True),  # type: ignore[call-arg]
        "DDPStrategy",
        "'find_unused_parameter'",
        "'find_unused_parameters'",
    ),
    "way to start processes": Mistake(
        lambda: DDPStrategy(start_method="frk"), "start_method", "'frk'", "'script', 'spawn', 'fork'"
    ),
    "no device": Mistake(given(devices=0), "devices", "0", "a count k >= 1"),
    "number as a text": Mistake(given(devices="two"), "devices", "'two'", "'auto' or -1 for all"),
    "range of devices": Mistake(given(devices="0-1"), "devices", "'0-1'", "distinct indices"),
    "device twice": Mistake(given(devices=[0, 0]), "devices", "[0, 0]", "distinct indices"),
    "flag for devices": Mistake(given(devices=True), "devices", "True", "a count k >= 1"),
    "no machine": Mistake(given(num_nodes=0), "num_nodes", "got 0", "an integer ≥ 1"),
    "misspelt precision": Mistake(given(precision="bf16-mixd"), "precision", "'bf16-mixd'", "'bf16-mixed'"),
    "dtype for a precision": Mistake(given(precision=torch.bfloat16), "precision", "torch.bfloat16", "Pass a name"),
    "strategy for an accelerator": Mistake(given(accelerator="ddp"), "accelerator", "'ddp'", "Pass strategy='ddp'"),
    "accelerator for a strategy": Mistake(given(strategy="cpu"), "strategy", "'cpu'", "Pass accelerator='cpu'"),
    "launcher that did not start it": Mistake(
        lambda: runtime(cluster_environment="slurm").launch(),
        "cluster_environment='slurm'",
        "SLURM_PROCID is not set",
        "Start it with the launcher",
    ),
    # -- arguments of a Trainer
    "misspelt argument": Mistake(given(max_epoch=2), "Trainer", "'max_epoch'", "'max_epochs'"),
    "argument of an older script": Mistake(given(gpus=2), "Trainer", "'gpus'", "Set accelerator='gpu' and devices="),
    "checkpoint for the constructor": Mistake(
        given(resume_from_checkpoint="x.ckpt"), "Trainer", "'resume_from_checkpoint'", "Pass ckpt_path= to fit()"
    ),
    "argument that is like none": Mistake(given(zzz=1), "Trainer", "'zzz'", "help(core.Trainer)"),
    "number of epochs as a text": Mistake(given(max_epochs="3"), "max_epochs", "'3'", "an integer ≥ 0"),
    "fraction above one": Mistake(
        given(limit_train_batches=1.5), "limit_train_batches", "1.5", "a float from 0.0 to 1.0"
    ),
    "no validation by interval": Mistake(
        given(val_check_interval=0), "val_check_interval", "0", "set limit_val_batches=0"
    ),
    "accumulation of nothing": Mistake(
        given(accumulate_grad_batches=0), "accumulate_grad_batches", "0", "an integer ≥ 1"
    ),
    "negative clipping": Mistake(given(gradient_clip_val=-1), "gradient_clip_val", "-1", "None or 0 for no clipping"),
    "kind of clipping": Mistake(
        given(gradient_clip_val=1.0, gradient_clip_algorithm="nrm"), "gradient_clip_algorithm", "'nrm'", "'norm'"
    ),
    "time as prose": Mistake(given(max_time="1 hour"), "max_time", "'1 hour'", "DD:HH:MM:SS"),
    "class for a callback": Mistake(
        given(callbacks=[EarlyStopping]), "callbacks", "EarlyStopping", "create an object of it"
    ),
    "misspelt logger": Mistake(given(logger="tensorbord"), "logger", "'tensorbord'", "Did you mean 'tensorboard'?"),
    "misspelt profiler": Mistake(given(profiler="simpl"), "profiler", "'simpl'", "Did you mean 'simple'?"),
    "folder that is none": Mistake(given(default_root_dir=3), "default_root_dir", "3", "must be a path"),
    # -- arguments of a Runtime
    "misspelt argument of a Runtime": Mistake(
        lambda: Runtime(acelerator="cpu"),  # type: ignore[call-arg]
        "Runtime",
        "'acelerator'",
        "Did you mean 'accelerator'?",
    ),
    "folder of a project": Mistake(lambda: runtime(project_dir=3), "project_dir", "3", "must be a path"),
    "argument of another unwrap_model": Mistake(
        lambda: runtime().unwrap_model(nn.Linear(1, 1), keep_fp32_wrapper=True),  # type: ignore[call-arg]
        "Runtime.unwrap_model",
        "keep_fp32_wrapper",
        "within runtime.autocast()",
    ),
    "argument of another autocast": Mistake(
        lambda: runtime().autocast(dtype=torch.bfloat16),  # type: ignore[call-arg]
        "Runtime.autocast",
        "'dtype'",
        "Set precision=",
    ),
    "path of a state": Mistake(
        lambda: runtime().save_state(3),  # type: ignore[arg-type]
        "save_state: output_dir",
        "3",
        "must be a path",
    ),
    "state of no module": Mistake(
        lambda: runtime().get_state_dict("net"),  # type: ignore[arg-type]
        "get_state_dict: model",
        "type str",
        "Pass a module",
    ),
    "unknown reduction": Mistake(
        lambda: runtime().reduce(torch.ones(2), "bogus"), "reduction", "'bogus'", "'mean', 'sum'"
    ),
    "state that is not there": Mistake(
        lambda: runtime().load_state("/nowhere"), "/nowhere", "does not exist", "Pass the path that it was saved to"
    ),
    "negative seed": Mistake(lambda: seed_everything(-1), "seed", "-1", "an integer from 0"),
    # -- callbacks, checkpoints and metrics
    "misspelt metric to stop by": Mistake(
        monitoring(EarlyStopping("val_los")), "EarlyStopping(monitor", "'val_los'", "Did you mean 'val_loss'?"
    ),
    "misspelt metric of checkpoints": Mistake(
        monitoring(ModelCheckpoint("/nowhere", monitor="val_los"), enable_checkpointing=True),
        "ModelCheckpoint(monitor",
        "'val_los'",
        "Did you mean 'val_loss'?",
    ),
    "mode": Mistake(lambda: EarlyStopping("loss", mode="minimum"), "mode", "'minimum'", "'min' or 'max'"),
    "best of what": Mistake(lambda: ModelCheckpoint(save_top_k=2), "save_top_k", "2", "Give monitor"),
    "best checkpoint of no run": Mistake(
        lambda: trainer().fit(Net(), loader(), ckpt_path="best"),
        "ckpt_path",
        "'best'",
        "Call fit before, or give a path",
    ),
    "no checkpoint for a module": Mistake(
        lambda: Net.load_from_checkpoint(map_location="cpu"),
        "Net.load_from_checkpoint",
        "missing a required argument",
        "'checkpoint_path'",
    ),
    "no checkpoint for a DataModule": Mistake(
        lambda: DataModule.load_from_checkpoint(),
        "DataModule.load_from_checkpoint",
        "missing a required argument",
        "'checkpoint_path'",
    ),
    "misspelt argument of save_checkpoint": Mistake(
        lambda: trainer().save_checkpoint(file_path="x"),  # type: ignore[call-arg]
        "Trainer.save_checkpoint",
        "'file_path'",
        "Did you mean 'filepath'?",
    ),
    "evaluation without a step": Mistake(
        lambda: trainer().test(Net(), loader()), "module: Net", "'test_step'", "does not define"
    ),
    "evaluation without data": Mistake(
        lambda: trainer().validate(Net()), "validate", "there is no loader", "Pass dataloaders"
    ),
    "tensor of several values": Mistake(logging(torch.ones(3)), "log('accuracy')", "(3,)", "value.mean()"),
    "text for a metric": Mistake(logging("high"), "log('accuracy')", "'high'", "a number or a scalar tensor"),
    "misspelt option of log": Mistake(logging(1.0, on_stp=True), "Module.log", "'on_stp'", "Did you mean 'on_step'?"),
    "number for a metric's name": Mistake(logging(1.0, name=3), "log(3)", "name of a metric", "log(name, value)"),
    "log outside of a run": Mistake(lambda: Net().log("loss", 1.0), "Net.trainer", "no Trainer", "in steps and hooks"),
    # -- environment variables
    "devices by variable": Mistake(environment(CORE_DEVICES="two"), "CORE_DEVICES", "'two'", "a count k >= 1"),
    "accelerator by variable": Mistake(
        environment(CORE_ACCELERATOR="gpu"), "CORE_ACCELERATOR", "'gpu'", "pip install torch-hal-cuda"
    ),
    "entry of CORE_PLUGINS": Mistake(
        environment(CORE_PLUGINS="cuda@"), "CORE_PLUGINS", "'cuda@'", "<name>@<distribution>"
    ),
    "misspelt variable": Mistake(environment(CORE_DEVICE="2"), "CORE_DEVICE=", "'2'", "Did you mean 'CORE_DEVICES'"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake(name: str) -> None:
    """The message names what is wrong, what was given, and what to do."""
    check(MISTAKES[name])


def test_number_of_mistakes() -> None:
    """The tables have the mistakes that were made on purpose: 79, and those found since."""
    assert len(MISTAKES) + len(test_loops.MISTAKES) >= 79


def test_lists_are_short() -> None:
    """A message has at most ten valid names; it names the command that lists the others."""
    for name in ("plugin of a strategy", "argument that is like none"):
        with pytest.raises((ValueError, TypeError)) as caught:
            MISTAKES[name].make()
        assert str(caught.value).count("'") <= 2 * 11, name
    with pytest.raises(ValueError, match="torch-hal list --kind strategy"):
        MISTAKES["plugin of a strategy"].make()
