"""Moving modules and optimizer states to their devices."""

from __future__ import annotations

from itertools import chain
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...errors import ConfigurationError
from ...utilities.torch_private import moves_in_place

__all__ = ["move_module", "move_optimizer_state"]

M = TypeVar("M", bound=nn.Module)


def move_module(module: M, device: torch.device) -> M:
    """Move ``module`` to ``device`` in place; every parameter stays the same object.

    Optimizers and tied weights refer to parameters as objects. ``module.to`` alone creates new ones where tensors of
    one device cannot replace those of the other in place, as with many backends from outside torch, on the way to the
    device and back to the host: such parameters are swapped.

    Raises:
        ConfigurationError: A parameter or buffer is on ``meta``, so it has no data to move.
    """
    for name, tensor in chain(module.named_parameters(), module.named_buffers()):
        if tensor.is_meta:
            raise ConfigurationError(
                f"module: {name!r} of {type(module).__name__} is on device 'meta' and has no data. Create the module "
                "on a real device, or use a strategy that initializes modules on 'meta'."
            )
    places = {parameter.device for parameter in module.parameters()}
    before = torch.__future__.get_swap_module_params_on_conversion()
    swap = before or not all(moves_in_place(place, device) for place in places)
    torch.__future__.set_swap_module_params_on_conversion(swap)
    try:
        return module.to(device)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)


def move_optimizer_state(optimizer: Optimizer) -> None:
    """Move the state that ``optimizer`` keeps for each parameter to the parameter's device."""
    for parameter, state in optimizer.state.items():
        kept = [value for value in state.values() if isinstance(value, Tensor) and value.dim()]
        if any(value.device != parameter.device for value in kept):
            # load_state_dict follows torch's rule of what moves with the parameter: step counts may stay on the CPU.
            optimizer.load_state_dict(optimizer.state_dict())
            return
