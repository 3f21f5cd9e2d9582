"""A stand-in for torch_xla: importing it gives torch the type ``xla``."""

from __future__ import annotations

import acme_driver
import torch
from stand_ins import device_count, recorded

from torch_xla.processes import launch

__all__ = ["device", "launch", "sync"]

_module = acme_driver.simulate("xla", device_count("XLA_DEVICES"), collectives="xla")


@recorded("torch_xla.device")
def device(index: int | None = None) -> torch.device:
    """The device at ``index``, which becomes the current one; else the current one."""
    if index is not None:
        _module.set_device(index)
    return torch.device("xla", _module.current_device())


@recorded("torch_xla.sync")
def sync(wait: bool = False, reset_scope: bool = True) -> None:
    """Run what was gathered: nothing, since the simulation gathers nothing."""
