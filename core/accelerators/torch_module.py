"""The module ``torch.<type>`` that torch has for a device type; functions in it may be missing."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["call_for_device", "device_function"]


def device_function(device_type: str, name: str) -> Callable[..., Any] | None:
    """Return ``torch.<device_type>.<name>``, or ``None`` if torch has no such module or function."""
    function: Callable[..., Any] | None = getattr(getattr(torch, device_type, None), name, None)
    return function


def call_for_device(device: torch.device, name: str) -> Any:
    """Call ``torch.<device type>.<name>`` for ``device``; return ``None`` if there is no such function."""
    function = device_function(device.type, name)
    if function is None:
        return None
    return function(device) if _takes_argument(function) else function()


def _takes_argument(function: Callable[..., Any]) -> bool:
    # Functions of device types with at most one device per machine don't always take a device.
    try:
        return bool(inspect.signature(function).parameters)
    except ValueError:  # a compiled function without a signature
        return True
