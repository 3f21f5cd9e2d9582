"""Usual mistakes with the methods of a Runtime: each was silent, or an error from within torch or core."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from .cases import Mistake, check, loader, runtime


def using(step: Any, **arguments: Any) -> Any:
    """A mistake after ``prepare``."""

    def make() -> None:
        run = runtime(**arguments)
        model = nn.Linear(3, 1)
        try:
            step(run, *run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1)))
        finally:
            run.teardown()

    return make


def preparing(*objects: Any, **arguments: Any) -> Any:
    """A mistake in the arguments of ``prepare``."""
    return lambda: runtime().prepare(*objects, **arguments)


def entering(method: str, what: Any, **arguments: Any) -> Any:
    """A mistake in the argument of a context of the loop."""

    def step(run: Any, model: Any, optimizer: Any) -> None:
        with getattr(run, method)(optimizer if what == "optimizer" else what):
            pass

    return using(step, **arguments)


MODEL = nn.Linear(3, 1)
SGD = torch.optim.SGD(MODEL.parameters(), lr=0.1)

MISTAKES: dict[str, Mistake] = {
    "name for a module": Mistake(preparing("model"), "prepare", "'model' of type str", "Pass modules, optimizers"),
    "device for an object": Mistake(preparing(MODEL, "cpu"), "prepare", "'cpu' of type str", "Pass modules"),
    "number for an object": Mistake(preparing(MODEL, 3), "prepare", "3 of type int", "Pass modules"),
    "generator for a loader": Mistake(
        preparing(MODEL, (batch for batch in loader())), "prepare", "type generator", "Pass the DataLoader"
    ),
    "iterator of a loader": Mistake(preparing(iter(loader())), "prepare", "DataLoaderIter", "not iter(loader)"),
    "parameters for a module": Mistake(
        preparing(MODEL.parameters()), "prepare", "type generator", "the module, not module.parameters()"
    ),
    "same module twice": Mistake(preparing(MODEL, MODEL), "prepare", "the same Linear twice", "Pass it once"),
    "same optimizer twice": Mistake(preparing(MODEL, SGD, SGD), "prepare", "the same SGD twice", "Pass it once"),
    "one value for device_placement": Mistake(
        preparing(MODEL, SGD, device_placement=True), "device_placement", "True", "[True, True]"
    ),
    "name for prepare_model": Mistake(
        lambda: runtime().prepare_model("net"),  # type: ignore[arg-type]
        "prepare_model: model",
        "'net' of type str",
        "Pass a module",
    ),
    "module for prepare_optimizer": Mistake(
        lambda: runtime().prepare_optimizer(MODEL),  # type: ignore[arg-type]
        "prepare_optimizer: optimizer",
        "type Linear",
        "Pass an optimizer",
    ),
    "optimizer for prepare_scheduler": Mistake(
        lambda: runtime().prepare_scheduler(SGD),  # type: ignore[arg-type]
        "prepare_scheduler: scheduler",
        "type SGD",
        "Pass a scheduler",
    ),
    "name for accumulate": Mistake(
        entering("accumulate", "net", gradient_accumulation_steps=2),
        "accumulate: model",
        "'net' of type str",
        "Pass the prepared module",
    ),
    "number for accumulate": Mistake(
        entering("accumulate", 4, gradient_accumulation_steps=2), "accumulate: model", "4 of type int", "Pass the"
    ),
    "optimizer for accumulate": Mistake(
        entering("accumulate", "optimizer", gradient_accumulation_steps=2), "accumulate", "must be a Module", "Pass the"
    ),
    "name for no_sync": Mistake(entering("no_sync", "net"), "no_sync: model", "'net' of type str", "Pass the"),
    "name for trigger_sync_in_backward": Mistake(
        entering("trigger_sync_in_backward", "net"), "trigger_sync_in_backward: model", "'net'", "Pass the"
    ),
    "name for unwrap_model": Mistake(
        using(lambda run, model, optimizer: run.unwrap_model("net")), "unwrap_model: model", "'net'", "Pass the"
    ),
    "nothing for unwrap_model": Mistake(
        using(lambda run, model, optimizer: run.unwrap_model(None)), "unwrap_model: model", "None", "Pass the"
    ),
    "name for clipping": Mistake(
        using(lambda run, model, optimizer: run.clip_grad_norm_("net", 1.0)),
        "clip_grad_norm_: parameters",
        "type str",
        "Pass model.parameters()",
    ),
    "state dict for clipping": Mistake(
        using(lambda run, model, optimizer: run.clip_grad_value_(model.state_dict(), 1.0)),
        "clip_grad_value_: parameters",
        "Dict",
        "Pass model.parameters()",
    ),
    "number for a state": Mistake(
        using(lambda run, model, optimizer: run.load_state(3)), "load_state: input_dir", "3", "must be a path"
    ),
    "no path to save": Mistake(
        using(lambda run, model, optimizer: run.save({"a": 1}, None)), "save: f", "None", "must be a path"
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake(name: str) -> None:
    """The message names what is wrong, what was given, and what to do."""
    check(MISTAKES[name])


def test_what_is_no_mistake() -> None:
    """None for a part that is not used, tensors, functions and objects of the user's own are returned as they are."""
    own = object()
    given = (None, torch.ones(2), len, own)
    run = runtime()
    assert all(a is b for a, b in zip(run.prepare(*given), given, strict=True))
    with run.accumulate(), run.no_sync(run.prepare(nn.Linear(3, 1))):
        pass
    run.teardown()
