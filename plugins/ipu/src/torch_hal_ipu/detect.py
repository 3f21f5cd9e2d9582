"""Counts IPUs without torch and without calling the driver."""

from __future__ import annotations

import os
import re
from pathlib import Path

__all__ = ["cards", "count", "has_partition", "uses_model"]

DEVICES = Path("/dev")
_CARD = re.compile(r"ipu\d+")


def count() -> int:
    """Return the number of IPUs of this machine.

    1 for the IPU Model, which simulates an IPU if ``POPTORCH_IPU_MODEL`` is set; otherwise the number of
    ``/dev/ipu<n>``; otherwise 1 for a partition of a pod, since only poptorch knows its number of IPUs.

    Raises:
        FileNotFoundError: The file ``IPUOF_CONFIG_PATH`` does not exist.
    """
    if uses_model():
        return 1
    return cards() or int(has_partition())


def uses_model() -> bool:
    """Return whether poptorch simulates an IPU on the host."""
    return os.environ.get("POPTORCH_IPU_MODEL", "0") not in ("", "0")


def cards() -> int:
    """Return the number of IPUs on this machine's bus."""
    return sum(1 for entry in os.scandir(DEVICES) if _CARD.fullmatch(entry.name))


def has_partition() -> bool:
    """Return whether a partition of a pod is configured, by its name or a configuration file.

    Raises:
        FileNotFoundError: The file ``IPUOF_CONFIG_PATH`` does not exist.
    """
    config = os.environ.get("IPUOF_CONFIG_PATH")
    if config and not Path(config).is_file():
        raise FileNotFoundError(f"IPUOF_CONFIG_PATH={config!r}: no such file")
    if config or os.environ.get("IPUOF_VIPU_API_PARTITION_ID"):
        return True
    return any((Path.home() / ".ipuof.conf.d").glob("*.conf"))
