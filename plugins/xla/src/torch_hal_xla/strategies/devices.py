"""Which devices a strategy can take."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from core import Accelerator
from core.errors import ConfigurationError

__all__ = ["require_all"]


def require_all(strategy: str, devices: Sequence[torch.device], accelerator: Accelerator) -> None:
    """Refuse some of a machine's devices where torch_xla itself takes all that it sees.

    Raises:
        ConfigurationError: As said.
    """
    there = accelerator.auto_device_count()
    if [device.index for device in devices] != list(range(there)):
        raise ConfigurationError(
            f"devices: {', '.join(map(str, devices))} of {there}, but under strategy={strategy!r} torch_xla takes all "
            f"that it sees, in order. Valid: {there}, 'auto'; or let it see fewer, by a variable such as "
            "CPU_NUM_DEVICES."
        )
