"""Attributes of a Runtime and a Trainer that do not exist, or that cannot be assigned."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import core
from core import Runtime
from core.errors import ConfigurationError, UnknownAttributeError
from core.hints.remedies import remedies

from .cases import Net, loader, runtime, trainer

FRONT_ENDS: dict[str, Any] = {"runtime": runtime, "trainer": trainer}


@pytest.mark.parametrize(
    ("owner", "name", "remedy"),
    [
        ("runtime", "is_main", "Did you mean 'is_main_process'?"),
        ("runtime", "backwards", "Did you mean 'backward'?"),
        ("runtime", "world_size", "Use runtime.num_processes."),
        ("runtime", "setup", "Call runtime.prepare."),
        ("runtime", "zzzzzz", "All of them: help(core.Runtime)"),
        ("trainer", "is_globl_zero", "Did you mean 'is_global_zero'?"),
        ("trainer", "val_dataloader", "Did you mean 'val_dataloaders'"),
        ("trainer", "fit_loop", "Use trainer.progress"),
        ("trainer", "best_model_path", "Use trainer.checkpoint_callback.best_model_path."),
        ("trainer", "zzzzzz", "All of them: help(core.Trainer)"),
    ],
)
def test_reading(owner: str, name: str, remedy: str) -> None:
    """The error says which attribute is meant, or what to use instead of another library's; Python adds no other."""
    front_end = FRONT_ENDS[owner]()
    with pytest.raises(UnknownAttributeError) as caught:
        getattr(front_end, name)
    assert str(caught.value).startswith(f"{owner.capitalize()}: there is no attribute {name!r}. {remedy}")
    printed = "".join(traceback.format_exception(caught.value))
    assert printed.count("Did you mean") == remedy.count("Did you mean")
    assert isinstance(caught.value, AttributeError)
    assert not hasattr(front_end, name)
    assert getattr(front_end, name, 3) == 3


@pytest.mark.parametrize("owner", FRONT_ENDS)
def test_remedies_exist(owner: str) -> None:
    """The attributes in the table are absent, and those that it names instead exist."""
    known = {*dir(FRONT_ENDS[owner]())}
    for name, remedy in remedies("attributes", [owner.capitalize()]).items():
        assert name not in known, name
        for mentioned in re.findall(rf"\b{owner}\.(\w+)", remedy):
            assert mentioned in known, (name, mentioned)
        for mentioned in re.findall(r"\bcore\.(\w+)", remedy):
            assert hasattr(core, mentioned), (name, mentioned)


def test_a_property_that_fails_keeps_its_error() -> None:
    """An AttributeError from within a property is not taken for an unknown attribute."""

    class Mine(Runtime):
        @property
        def broken(self) -> Any:
            return self.device.no_such_thing  # type: ignore[attr-defined]

    with pytest.raises(AttributeError, match=r"torch\.device.*no_such_thing"):
        Mine(accelerator="cpu", devices=1).broken  # noqa: B018


@pytest.mark.parametrize(
    ("owner", "name", "message"),
    [
        ("runtime", "gradient_accumulation", "there is no such setting. Did you mean 'gradient_accumulation_steps'?"),
        ("runtime", "gradient_accumulation_step", "Did you mean 'gradient_accumulation_steps'?"),
        ("runtime", "sync_gradient", "Did you mean 'sync_gradients'?"),
        (
            "runtime",
            "precision",
            "no effect after the Runtime was made. Pass it to the constructor: Runtime(precision=",
        ),
        ("runtime", "mixed_precision", "is read-only. Pass it to the constructor: Runtime(mixed_precision="),
        ("runtime", "device", "is read-only. It says what the run is"),
        ("runtime", "world_size", "there is no such attribute, so it has no effect. Use runtime.num_processes."),
        ("runtime", "my_metric", "Keep a value of your own in a variable, or in a class that derives from Runtime."),
        ("trainer", "my_folder", "Keep a value of your own in a variable, or in a class that derives from Trainer."),
        ("trainer", "batch_idx", "Take batch_idx from the arguments of the step or the hook."),
        ("trainer", "callback", "Did you mean 'callbacks'?"),
        ("trainer", "gradient_clip", "Did you mean 'gradient_clip_val'?"),
        ("trainer", "should_stopp", "Did you mean 'should_stop'?"),
        ("trainer", "max_time", "no effect after the Trainer was made. Pass it to the constructor: Trainer(max_time="),
        ("trainer", "current_epoch", "is read-only. It says what the run is"),
    ],
)
def test_assigning(owner: str, name: str, message: str) -> None:
    """What would have no effect is refused with its value and the remedy."""
    front_end = FRONT_ENDS[owner]()
    with pytest.raises(ConfigurationError) as caught:
        setattr(front_end, name, "x")
    assert f"{owner}.{name} = 'x': " in str(caught.value)
    assert message in str(caught.value)
    assert name not in vars(front_end)


@pytest.mark.parametrize("name", ["device", "mixed_precision", "plan", "my_metric"])
def test_assigning_facts(name: str) -> None:
    """Objects that say what the run is keep nothing of the script's."""
    for called, facts in [("runtime.state", runtime().state), ("PartialState", core.PartialState())]:
        with pytest.raises(ConfigurationError, match=re.escape(f"{called}.{name} = 'x': is read-only.")):
            setattr(facts, name, "x")


def test_attributes_of_the_users_own() -> None:
    """A class of the user's has them, if their names are like none; and what can be changed is changed."""

    class Mine(Runtime):
        pass

    run: Any = Mine(accelerator="cpu", devices=1)
    run.my_metric, run.best, run.gradient_accumulation_steps, run.even_batches = 1, 2, 3, False
    assert (run.my_metric, run.best, run.gradient_accumulation_steps, run.even_batches) == (1, 2, 3, False)
    with pytest.raises(ConfigurationError, match=r"Did you mean 'sync_gradients'"):
        run.sync_gradient = True


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("LightningModule", "from core import Module as LightningModule"),
        ("Fabric", "from core import Runtime as Fabric"),
        ("EarlyStopping", "from core.callbacks import EarlyStopping"),
        ("CSVLogger", "from core.loggers import CSVLogger"),
        ("DDPStrategy", "from core.strategies import DDPStrategy"),
        ("CLI", "from core.cli import CLI"),
    ],
)
def test_names_that_are_elsewhere(name: str, line: str) -> None:
    """Importing from core what is in another module, or has another name here, says the line to write."""
    with pytest.raises(ImportError, match=f"core has no '{name}'. Write: {line}"):
        exec(f"from core import {name}")
    assert not hasattr(core, name)  # libraries ask so for names that may not be there
    with pytest.raises(ImportError, match=r"core has no 'Trainr'. Did you mean 'Trainer'?"):
        exec("from core import Trainr")
    assert not hasattr(core, "Trainr")


AFTER: dict[str, Callable[[Any], Any]] = {
    "backward": lambda run: run.backward(torch.ones((), requires_grad=True)),
    "gather": lambda run: run.gather(torch.ones(1)),
    "prepare": lambda run: run.prepare(nn.Linear(3, 1)),
    "wait_for_everyone": lambda run: run.wait_for_everyone(),
    "save_state": lambda run: run.save_state("nowhere"),
}


@pytest.mark.parametrize("method", AFTER)
def test_after_the_run(method: str) -> None:
    """The methods that need the processes refuse to start them again."""
    run = runtime()
    run.prepare(nn.Linear(3, 1))
    run.teardown()
    with pytest.raises(ConfigurationError, match=r"the run has ended.*create another Runtime.*runtime\.launch\(\)"):
        AFTER[method](run)


def test_starting_again() -> None:
    """launch starts the run again; a teardown before the start ends nothing; a Trainer runs as often as it is told."""
    run = runtime()
    run.teardown()
    run.prepare(nn.Linear(3, 1))
    run.teardown()
    run.launch()
    assert run.gather(torch.ones(1)).tolist() == [1.0]
    run.teardown()
    fitting = trainer()
    for _ in range(2):
        fitting.fit(Net(), loader())
