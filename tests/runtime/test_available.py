"""Names of scripts for Accelerate that say what is installed and present, and functions that need no Runtime."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import nn

from core import PartialState, Runtime, clear_device_cache, init_empty_weights, set_module_tensor_to_device
from core.errors import ConfigurationError
from core.hints.remedies import remedies
from core.utilities import available

from .problem import runtime


def test_what_is_available() -> None:
    """Each name of the table, by what it stands for; others are no names of the module."""
    for name, thing in remedies("available").items():
        kind, _, what = thing.rpartition(" ")
        found = getattr(available, name)()
        if not kind:
            assert found == (find_spec(what) is not None), name
        assert isinstance(found, bool)
        assert remedies("elsewhere")[name] == f"core.utilities.available.{name}"
    assert available.is_cuda_available(check_device=True) == torch.cuda.is_available()
    for name in ("is_available", "is_unheard_of_available"):
        assert not hasattr(available, name)


def test_torch() -> None:
    """Its version, compared as a version; and whether the CPU computes in bfloat16."""
    assert available.is_torch_version(">=", "2.6")
    assert not available.is_torch_version("<", "2.6")
    assert available.is_torch_version(">", "2.6.0") != available.is_torch_version("<=", "2.6.0")
    with pytest.raises(ConfigurationError, match=r"operation='=>': unknown. Valid: '=='"):
        available.is_torch_version("=>", "2.6")
    if not torch.accelerator.is_available():
        assert available.is_bf16_available()


def test_a_tensor_gets_a_place_and_a_value() -> None:
    """A parameter stays one, with its attributes; a buffer and a dtype, too."""
    with init_empty_weights(include_buffers=True):
        module: Any = nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1))
    weight: Any = module[0].weight
    weight.tag = "kept"
    weight.requires_grad_(False)
    set_module_tensor_to_device(module, "0.weight", "cpu", value=torch.ones(1, 2, dtype=torch.float64))
    placed: Any = module[0].weight
    assert (placed.tolist(), placed.dtype, placed.requires_grad) == ([[1.0, 1.0]], torch.float32, False)
    assert (type(placed), placed.tag) == (nn.Parameter, "kept")
    set_module_tensor_to_device(module, "0.bias", "cpu", value=torch.zeros(1), dtype=torch.bfloat16)
    assert module[0].bias.dtype == torch.bfloat16
    set_module_tensor_to_device(module, "1.num_batches_tracked", "cpu", value=torch.tensor(3))
    assert module[1].num_batches_tracked.item() == 3
    set_module_tensor_to_device(module, "0.weight", "meta")
    assert module[0].weight.is_meta
    for name, value, text in (
        ("0.wieght", None, "'0.wieght': Sequential has no such parameter or buffer. Did you mean '0.weight'"),
        ("2.weight", None, "has no such parameter"),
        ("1.weight", None, "is on 'meta', so it has no value"),
        ("1.weight", torch.ones(2), r"has shape \(1,\), and value has shape \(2,\)"),
    ):
        with pytest.raises(ConfigurationError, match=text):
            set_module_tensor_to_device(module, name, "cpu", value=value)
    clear_device_cache(garbage_collection=True)


def test_a_reset_ends_the_run() -> None:
    """By any of the states, with or without a run; then another may have other settings."""
    PartialState._reset_state()
    one = runtime(precision="bf16-mixed")
    one.launch()
    PartialState()._reset_state(True)
    with pytest.raises(ConfigurationError, match="the run has ended"):
        one.wait_for_everyone()
    two = Runtime(cpu=True, mixed_precision="no")
    two.launch()
    two.state._reset_state()
    with pytest.raises(ConfigurationError, match="the run has ended"):
        two.wait_for_everyone()
