"""Moving a module to its device."""

from __future__ import annotations

from itertools import chain
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from core.errors import ConfigurationError

__all__ = ["move_module", "move_optimizer_state"]

M = TypeVar("M", bound=nn.Module)


def move_module(module: M, device: torch.device) -> M:
    """``module`` on ``device``, in place, every parameter still the same object.

    Optimizers and tied weights know parameters as objects. ``module.to`` alone makes new ones on devices whose tensors
    cannot take the place of the host's, as those of backends from outside torch often cannot: such parameters are
    swapped instead.

    Raises:
        ConfigurationError: A parameter or buffer is on ``meta``, where it has no numbers to take along.
    """
    for name, tensor in chain(module.named_parameters(), module.named_buffers()):
        if tensor.is_meta:
            raise ConfigurationError(
                f"module: {name!r} of {type(module).__name__} is on 'meta', without numbers. Valid: a module made on a "
                "device, or a strategy that gives numbers to what was made on 'meta'."
            )
    host, there = torch.empty(0, device="cpu"), torch.empty(0, device=device)
    before = torch.__future__.get_swap_module_params_on_conversion()
    swap = before or not torch._has_compatible_shallow_copy_type(host, there)
    torch.__future__.set_swap_module_params_on_conversion(swap)
    try:
        return module.to(device)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)


def move_optimizer_state(optimizer: Optimizer) -> None:
    """Put what ``optimizer`` keeps of each parameter where that parameter is now."""
    for parameter, state in optimizer.state.items():
        kept = [value for value in state.values() if isinstance(value, Tensor) and value.dim()]
        if any(value.device != parameter.device for value in kept):
            # torch's own rule of which tensors follow the parameter: those of a step count may stay on the host.
            optimizer.load_state_dict(optimizer.state_dict())
            return
