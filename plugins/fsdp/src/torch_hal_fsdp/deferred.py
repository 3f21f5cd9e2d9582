"""Deferred initialization: a module on ``meta`` is initialized when it is sharded, one layer at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import attrs
import torch
from torch import Tensor, nn

from torch_hal.errors import ConfigurationError, quoted
from torch_hal.strategies.sharding import put_whole
from torch_hal_fsdp.selection import post_order

__all__ = ["Deferred", "InitFunction", "find_deferred", "initialize"]

InitFunction = Callable[[nn.Module], object]
"""Initializes a module's own parameters and buffers, as ``reset_parameters`` does."""

_RESETS = ("reset_parameters", "_reset_parameters")


@attrs.frozen
class Deferred:
    """A module whose own tensors are on ``meta``: their names, and the dtypes that they were made in."""

    name: str
    module: nn.Module
    parameters: dict[str, torch.dtype]
    buffers: dict[str, torch.dtype]


def find_deferred(root: nn.Module, init_fn: InitFunction | None) -> list[Deferred]:
    """The modules of ``root`` with tensors on ``meta``, in the order in which they were made.

    Raises:
        ConfigurationError: One of them cannot be initialized.
    """
    names = {id(module): name for name, module in root.named_modules()}
    found = []
    for module in post_order(root):
        parameters = {name: p.dtype for name, p in module.named_parameters(recurse=False) if p.is_meta}
        buffers = {name: b.dtype for name, b in module.named_buffers(recurse=False) if b.is_meta}
        if parameters or buffers:
            found.append(Deferred(names[id(module)], module, parameters, buffers))
    without = [f"{item.name or 'the module itself'} ({type(item.module).__name__})" for item in found]
    without = [text for text, item in zip(without, found, strict=True) if _reset_of(item.module) is None]
    if without and init_fn is None:
        raise ConfigurationError(
            f"module: {quoted(without)} on 'meta' cannot be initialized: no reset_parameters. Set "
            "init_fn=function(module) on the strategy to initialize each module's own parameters and buffers, or "
            "make the module on the CPU."
        )
    return found


def initialize(found: Sequence[Deferred], init_fn: InitFunction | None, device: torch.device) -> None:
    """Initialize each full module on the host, and keep this process's shards.

    The host's generator draws as it does when the module is made there; parameters that several modules share take the
    values of the first.

    Args:
        found: Modules whose parameters are sharded and allocated by now.
        init_fn: Initializes a module; its own ``reset_parameters`` if ``None``.
        device: The device of buffers.

    Raises:
        ConfigurationError: Some tensors were not initialized.
    """
    done: set[int] = set()
    for item in found:
        module = item.module
        targets = {name: module._parameters[name] for name in item.parameters}
        buffers = {name: module._buffers[name] for name in item.buffers}
        for name, target in targets.items():
            whole = _unset(target, item.parameters[name])
            module._parameters[name] = nn.Parameter(whole, whole.is_floating_point())
        for name, buffer in buffers.items():
            module._buffers[name] = _unset(buffer, item.buffers[name])
        with torch.no_grad():
            (init_fn or _reset)(module)
        _check_given(item)
        for name, target in targets.items():
            given, module._parameters[name] = module._parameters[name], target
            if id(target) not in done and target is not None and given is not None:
                put_whole(target, given.detach())
                done.add(id(target))
        for name, buffer in buffers.items():
            given_buffer = module._buffers[name]
            if buffer is not None and given_buffer is not None:
                module._buffers[name] = given_buffer.to(device, buffer.dtype)


def _unset(like: Tensor | None, dtype: torch.dtype) -> Tensor:
    assert like is not None
    number = math.nan if dtype.is_floating_point or dtype.is_complex else 0
    return torch.full(like.shape, number, dtype=dtype, device="cpu")


def _check_given(item: Deferred) -> None:
    tensors: dict[str, Tensor | None] = {name: item.module._parameters[name] for name in item.parameters}
    tensors |= {name: item.module._buffers[name] for name in item.buffers}
    unset = [f"{item.name}.{name}" for name, tensor in tensors.items() if tensor is None or tensor.isnan().any()]
    if unset:
        raise ConfigurationError(
            f"module: {quoted(unset)} on 'meta' was not initialized by {type(item.module).__name__}'s reset_parameters "
            "or by init_fn. Set init_fn=function(module) on the strategy to initialize all of a module's own "
            "parameters and buffers."
        )


def _reset_of(module: nn.Module) -> Callable[[], object] | None:
    for name in _RESETS:
        reset: Callable[[], object] | None = getattr(module, name, None)
        if callable(reset):
            return reset
    return None


def _reset(module: nn.Module) -> None:
    reset = _reset_of(module)
    assert reset is not None  # find_deferred has checked this
    reset()
