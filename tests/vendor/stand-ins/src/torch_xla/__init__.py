"""A stand-in for torch_xla: importing it gives torch the type ``xla``."""

from __future__ import annotations

import acme_driver
import torch
from stand_ins import device_count, recorded

__all__ = ["device", "sync"]

_module = acme_driver.simulate("xla", device_count("XLA_DEVICES"), collectives="xla")


@recorded("torch_xla.device")
def device(index: int | None = None) -> torch.device:
    """The device at ``index``, else the current one."""
    return torch.device("xla", _module.current_device() if index is None else index)


@recorded("torch_xla.sync")
def sync(wait: bool = False) -> None:
    """Run what was gathered: nothing, since the simulation gathers nothing."""
