"""Replicates a module to another device, with copies of its parameters that gradients flow through."""

from __future__ import annotations

from itertools import chain
from types import MethodType
from typing import Any

import torch
from torch import nn

from torch_hal.errors import WrongTypeError

__all__ = ["check_replicable", "replicate"]

_OWN = ("_parameters", "_buffers", "_modules")
"""Attributes that a replica always has its own copy of."""


def check_replicable(network: nn.Module) -> None:
    """Check that the module can be replicated.

    Raises:
        WrongTypeError: A submodule was compiled by ``torch.jit.script``.
    """
    for name, module in network.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise WrongTypeError(
                f"module {name!r}: a ScriptModule cannot run on several devices. Use the module without torch.jit."
            )


def replicate(network: nn.Module, device: torch.device) -> nn.Module:
    """Return ``network`` on ``device``: new modules with copies of its parameters and buffers.

    A backward pass through the copies adds to the gradients of the original parameters. All other attributes are
    shared, except references to modules, their methods, parameters and buffers, also in lists and dictionaries: these
    refer to the replica's own.
    """
    copies: dict[int, Any] = {
        id(tensor): tensor.to(device, non_blocking=True, copy=True)
        for tensor in chain(network.parameters(), network.buffers())
    }
    modules = list(network.modules())
    for module in modules:
        copies[id(module)] = type(module).__new__(type(module))
    for module in modules:
        held = copies[id(module)].__dict__
        held.update({name: _exchanged(value, copies) for name, value in module.__dict__.items()})
        held.update({name: dict(held[name]) for name in _OWN})
        held.pop("_compiled_call_impl", None)  # created by Module.compile() for the original
    replica: nn.Module = copies[id(network)]
    return replica


def _exchanged(value: Any, copies: dict[int, Any]) -> Any:
    """``value`` with references replaced by their copies; ``value`` itself if nothing has a copy."""
    if id(value) in copies:
        return copies[id(value)]
    if isinstance(value, MethodType) and id(value.__self__) in copies:
        return MethodType(value.__func__, copies[id(value.__self__)])
    kind = type(value)
    if kind in (list, tuple):
        items = [_exchanged_item(item, copies) for item in value]
        return kind(items) if any(new is not old for new, old in zip(items, value, strict=True)) else value
    if isinstance(value, dict) and any(id(item) in copies for item in value.values()):
        return {key: _exchanged_item(item, copies) for key, item in value.items()}
    return value


def _exchanged_item(item: Any, copies: dict[int, Any]) -> Any:
    return copies.get(id(item), item)
