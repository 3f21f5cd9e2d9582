"""Which IPUs are there: torch-free, without a call of the driver."""

from __future__ import annotations

import os
import re
from pathlib import Path

__all__ = ["cards", "count", "has_partition", "uses_model"]

DEVICES = Path("/dev")
_CARD = re.compile(r"ipu\d+")


def count() -> int:
    """How many IPUs this machine has.

    One for the IPU Model, which simulates an IPU where ``POPTORCH_IPU_MODEL`` says so; else a card for each
    ``/dev/ipu<n>``; else one for a partition of a pod, of which poptorch alone knows how many IPUs it has.

    Raises:
        FileNotFoundError: ``IPUOF_CONFIG_PATH`` names a file that is not there.
    """
    if uses_model():
        return 1
    return cards() or int(has_partition())


def uses_model() -> bool:
    """Whether poptorch is told to simulate an IPU on the host."""
    return os.environ.get("POPTORCH_IPU_MODEL", "0") not in ("", "0")


def cards() -> int:
    """How many IPUs are on this machine's own bus."""
    return sum(1 for entry in os.scandir(DEVICES) if _CARD.fullmatch(entry.name))


def has_partition() -> bool:
    """Whether a partition of a pod is configured: by its name, or by a configuration file.

    Raises:
        FileNotFoundError: The file is named and not there.
    """
    config = os.environ.get("IPUOF_CONFIG_PATH")
    if config and not Path(config).is_file():
        raise FileNotFoundError(f"IPUOF_CONFIG_PATH={config!r}: no such file")
    if config or os.environ.get("IPUOF_VIPU_API_PARTITION_ID"):
        return True
    return any((Path.home() / ".ipuof.conf.d").glob("*.conf"))
