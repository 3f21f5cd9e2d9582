"""The patches that README lists: that each is still needed, and what it relies on is still there."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import pytest
import torch

from torch_hal.errors import ConfigurationError


@pytest.fixture
def unpatched(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Accelerate alone, in one of two processes on a card that it does not know."""
    import torch_acme  # noqa: F401
    from accelerate.state import AcceleratorState, PartialState

    for name, value in {"ACCELERATE_TORCH_DEVICE": "acme:0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda **options: None)
    yield PartialState
    AcceleratorState._reset_state(reset_partial_state=True)


def test_accelerate_alone_trains_each_process_on_its_own(unpatched: Any) -> None:
    """Why the state's constructor is wrapped: without it, each of two processes believes that it is alone."""
    from accelerate.utils import DistributedType

    state = unpatched()
    assert state.device == torch.device("acme:0")
    assert state.distributed_type == DistributedType.NO
    assert state.num_processes == 1


def test_what_the_patches_rely_on_is_there() -> None:
    """Names of Accelerate and Transformers that are no part of their documentation."""
    from accelerate.state import AcceleratorState, PartialState

    assert PartialState._shared_state == {}
    assert callable(AcceleratorState._reset_state)
    assert isinstance(PartialState.initialized, property)
    assert "distributed_type" in PartialState._known_attrs
    if importlib.util.find_spec("transformers") is not None:
        from transformers import training_args
        from transformers.trainer import DEFAULT_CALLBACKS

        assert isinstance(DEFAULT_CALLBACKS, list)
        assert training_args.is_torch_bf16_gpu_available() is False


def test_deactivating_restores_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """The classes and the environment variables are what they were."""
    from accelerate.state import PartialState
    from torch_hal_accelerate import Accelerator, activate, deactivate

    constructor, before, to = PartialState.__init__, dict(os.environ), torch.nn.Module.to
    plan = activate(accelerator="acme", devices=1, precision="bf16-mixed")
    assert activate(accelerator="acme") is plan
    with pytest.raises(ConfigurationError, match=r"activate\(devices=2\): Accelerate was activated with devices=1"):
        activate(devices=2)
    accelerator = Accelerator()
    assert (str(accelerator.device), accelerator.mixed_precision) == ("acme:0", "bf16")
    deactivate()
    assert PartialState.__init__ is constructor
    assert {name: value for name, value in os.environ.items() if name.startswith("ACCELERATE")} == {
        name: value for name, value in before.items() if name.startswith("ACCELERATE")
    }
    assert torch.nn.Module.to is to


@pytest.mark.parametrize(
    ("arguments", "variables", "message"),
    [
        ({"strategy": "ddp_spawn", "devices": 2}, {}, "'ddp_spawn' cannot run under Accelerate: it calls a function"),
        ({"precision": "64-true"}, {}, "precision='64-true': Accelerate has"),
        ({}, {"ACCELERATE_USE_DEEPSPEED": "true"}, "ACCELERATE_USE_DEEPSPEED=true: DeepSpeed under Accelerate"),
        ({"accelerator": "acme"}, {"ACCELERATE_USE_CPU": "true"}, "ACCELERATE_USE_CPU=true contradicts"),
    ],
)
def test_what_cannot_run_is_refused(
    monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], variables: dict[str, str], message: str
) -> None:
    """By name, before any process starts."""
    from torch_hal_accelerate import activate

    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match=message):
        activate(**{"accelerator": "cpu", **arguments})


def test_an_engine_that_is_asked_for_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """By ``deepspeed_plugin`` or ``TrainingArguments(deepspeed=...)``, which set the variable after activation."""
    from accelerate.state import PartialState
    from torch_hal_accelerate import activate, deactivate

    activate(accelerator="acme", devices=1)
    try:
        monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
        with pytest.raises(ConfigurationError, match=r"ACCELERATE_USE_DEEPSPEED=true: .*TrainingArguments\(deepspeed="):
            PartialState()
    finally:
        deactivate()


def test_contradictions() -> None:
    """Between Accelerate's names and torch-hal's."""
    from torch_hal_accelerate import Accelerator

    with pytest.raises(ConfigurationError, match="mixed_precision='bf16' contradicts precision='32-true'"):
        Accelerator(mixed_precision="bf16", precision="32-true")
    with pytest.raises(ConfigurationError, match="cpu=True contradicts accelerator='acme'"):
        Accelerator(cpu=True, accelerator="acme")
