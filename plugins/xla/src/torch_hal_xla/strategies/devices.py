"""Checks which devices a strategy can use."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torch_hal import Accelerator
from torch_hal.errors import ConfigurationError

__all__ = ["require_all"]


def require_all(strategy: str, devices: Sequence[torch.device], accelerator: Accelerator) -> None:
    """Check that all devices of the machine are used, since torch_xla uses all that it sees.

    Raises:
        ConfigurationError: ``devices`` are not all devices, in order.
    """
    count = accelerator.auto_device_count()
    if [device.index for device in devices] != list(range(count)):
        raise ConfigurationError(
            f"devices: {', '.join(map(str, devices))} of {count}, but under strategy={strategy!r} torch_xla uses all "
            f"devices that it sees, in order. Use devices={count} or 'auto', or limit the visible devices with a "
            "variable such as CPU_NUM_DEVICES."
        )
