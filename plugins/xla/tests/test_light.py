"""What the package says of itself before torch is there, and what its accelerator does without torch_xla."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from typing import Any

import pytest
import torch
from torch_hal_xla import plugin
from torch_hal_xla.accelerator import _require_backward

from torch_hal.specs import BackendSpec

HOOKS: dict[str, Callable[[], Sequence[BackendSpec]]] = {
    "core.accelerators": plugin.core_accelerators,
    "core.strategies": plugin.core_strategies,
    "core.checkpoint_ios": plugin.core_checkpoint_ios,
    "core.cluster_environments": plugin.core_cluster_environments,
}


@pytest.mark.parametrize("group", HOOKS)
def test_names_in_metadata_are_those_of_the_hooks(group: str) -> None:
    """The entry points name exactly the backends that the hooks hand over."""
    keys = {point.name for point in entry_points(group=group) if point.value.startswith("torch_hal_xla.")}
    assert keys == {spec.name for spec in HOOKS[group]()}
    assert keys


def test_hooks_detection_and_environment_import_no_torch() -> None:
    """Handing over specs, counting devices and looking who started the process takes neither torch nor torch_xla."""
    code = (
        "import sys; from torch_hal_xla import detect, plugin; plugin.core_accelerators(); plugin.core_strategies(); "
        "detect.count(); detect.is_launched({}); "
        "assert not {'torch', 'torch_xla', 'torch_hal_xla.accelerator'} & set(sys.modules), sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("off", [torch.no_grad, torch.inference_mode])
def test_a_device_is_set_up_where_no_gradients_are_computed(off: Callable[[], Any]) -> None:
    """That a program computes no gradients now does not mean that it cannot."""
    with off():
        _require_backward(torch.device("cpu"))
