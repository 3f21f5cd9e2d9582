"""A module on another device whose parameters are copies that gradients flow back through."""

from __future__ import annotations

from itertools import chain
from types import MethodType
from typing import Any

import torch
from torch import nn

from core.errors import WrongTypeError

__all__ = ["check_replicable", "replicate"]

_OWN = ("_parameters", "_buffers", "_modules")
"""What a replica holds for itself, even where there is nothing in it to be exchanged."""


def check_replicable(network: nn.Module) -> None:
    """Refuse what holds its parameters where they cannot be exchanged.

    Raises:
        WrongTypeError: There is a module that was compiled by ``torch.jit.script``.
    """
    for name, module in network.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise WrongTypeError(
                f"module {name!r}: a ScriptModule cannot be run on several devices at once. Valid: modules in Python."
            )


def replicate(network: nn.Module, device: torch.device) -> nn.Module:
    """``network`` on ``device``: the same modules, anew, with copies of its parameters and buffers.

    What a backward pass through the copies finds is added to the gradients of the parameters themselves. Whatever else
    the modules hold is shared, but for references to one another, to their methods, parameters and buffers, be they in
    a list or a dictionary: these are to the replica's own.
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
        held.pop("_compiled_call_impl", None)  # made by Module.compile(), for the original
    replica: nn.Module = copies[id(network)]
    return replica


def _exchanged(value: Any, copies: dict[int, Any]) -> Any:
    """``value`` with what has a copy exchanged for it; itself where nothing has."""
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
