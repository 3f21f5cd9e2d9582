"""What torch holds for a device type: its module ``torch.<type>``, which need not have every function."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["call_for_device", "device_function"]


def device_function(device_type: str, name: str) -> Callable[..., Any] | None:
    """``torch.<device_type>.<name>``, or ``None`` where torch has no such module or function."""
    function: Callable[..., Any] | None = getattr(getattr(torch, device_type, None), name, None)
    return function


def call_for_device(device: torch.device, name: str) -> Any:
    """Call ``torch.<device type>.<name>`` for ``device``; ``None`` where there is no such function."""
    function = device_function(device.type, name)
    if function is None:
        return None
    return function(device) if _takes_argument(function) else function()


def _takes_argument(function: Callable[..., Any]) -> bool:
    # Types of which a machine has at most one device don't always take it.
    try:
        return bool(inspect.signature(function).parameters)
    except ValueError:  # compiled, and doesn't tell
        return True
