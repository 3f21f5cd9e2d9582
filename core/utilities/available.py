"""Whether a package is installed or a type of device is present, under the names of scripts for Accelerate.

``from core.utilities.available import is_wandb_available``; the names are in ``remedies.toml``.
"""

from __future__ import annotations

import importlib.util
import operator
from collections.abc import Callable
from functools import partial
from importlib.metadata import version as version_of

import torch
from torch.torch_version import TorchVersion

from ..errors import ConfigurationError, quoted
from ..hints.remedies import remedies

__all__ = ["is_bf16_available", "is_torch_version"]

_COMPARISONS = {
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


def __getattr__(name: str) -> Callable[..., bool]:
    kind, _, thing = remedies("available").get(name, "").rpartition(" ")
    if not thing:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return partial(_is_present if kind else _is_installed, thing)


def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _is_present(device_type: str, check_device: bool = False) -> bool:
    """Whether torch has devices of a type; ``check_device`` is Accelerate's, and changes nothing: torch looks."""
    device = getattr(torch, device_type, None)  # of hardware outside of torch, once its package is imported
    return device is not None and bool(device.is_available())


def is_torch_version(operation: str, version: str) -> bool:
    """Whether torch's version compares so: ``is_torch_version(">=", "2.8")``.

    Raises:
        ConfigurationError: ``operation`` is no comparison.
    """
    if operation not in _COMPARISONS:
        raise ConfigurationError(f"operation={operation!r}: unknown. Valid: {quoted(_COMPARISONS)}.")
    return bool(_COMPARISONS[operation](TorchVersion(version_of("torch")), version))


def is_bf16_available() -> bool:
    """Whether torch's current accelerator, or else the CPU, computes in bfloat16."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is None:
        return True
    supported = getattr(torch.get_device_module(accelerator), "is_bf16_supported", None)
    return supported is None or bool(supported())
