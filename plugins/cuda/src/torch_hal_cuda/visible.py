"""The grammar of ``CUDA_VISIBLE_DEVICES`` and similar variables, which select the devices that a process sees.

The driver never refuses a value: it stops at the first entry that it does not understand, so a typing error hides
devices. This module behaves like the driver.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeVar

__all__ = ["Gpu", "MigInstance", "select", "visible"]

T = TypeVar("T")

# Only the beginning of an entry counts, as in C's strtol: "1gpu" is 1.
_NUMBER = re.compile(r"\s*[+-]?\d+", re.ASCII)


class MigInstance:
    """A compute instance of a GPU that is in MIG mode."""

    def __init__(self, uuid: str, gpu_instance: int, compute_instance: int) -> None:
        self.uuid = uuid
        """As the driver reports it: ``MIG-<uuid>``; older drivers ``MIG-GPU-<uuid>/<gi>/<ci>``."""
        self.gpu_instance = gpu_instance
        self.compute_instance = compute_instance


class Gpu:
    """A GPU of this machine."""

    def __init__(self, uuid: str, instances: Sequence[MigInstance] | None = None) -> None:
        self.uuid = uuid
        """``GPU-<uuid>``; empty if the driver reports none."""
        self.instances = instances
        """Its compute instances if it is in MIG mode, else ``None``."""


def visible(gpus: Sequence[Gpu], value: str | None) -> list[str]:
    """Return the UUIDs of the CUDA devices that a process sees, in its order.

    A process that sees a compute instance of a GPU in MIG mode sees only that device: CUDA enumerates the first
    instance, and no GPU besides it.

    Args:
        gpus: The GPUs of this machine, in the driver's order.
        value: ``CUDA_VISIBLE_DEVICES``: indices, UUIDs of GPUs or prefixes of them, or UUIDs of compute instances,
            separated by commas; ``None`` if it is not set.
    """
    if value is not None and value.strip().startswith("MIG-"):
        return _first_instance(gpus, value)
    chosen = list(gpus) if value is None else select(gpus, [gpu.uuid for gpu in gpus], value)
    instances = [instance.uuid for gpu in chosen for instance in gpu.instances or ()]
    return instances[:1] or [gpu.uuid for gpu in chosen if gpu.instances is None]


def select(items: Sequence[T], uuids: Sequence[str], value: str) -> list[T]:
    """Return the ``items`` that ``value`` selects, up to the first invalid entry; none if there is a duplicate.

    Args:
        items: All items, by index.
        uuids: The UUID of each item.
        value: Indices, or, if the first entry is a UUID, UUIDs and unique prefixes of UUIDs, separated by commas.
    """
    by_uuid = value.strip().startswith("GPU-")
    chosen: list[int] = []
    for entry in value.split(","):
        index = _find(entry.strip(), uuids) if by_uuid else _index(entry, len(items))
        if index is None:
            break
        if index in chosen:
            return []
        chosen.append(index)
    return [items[index] for index in chosen]


def _index(entry: str, count: int) -> int | None:
    number = _NUMBER.match(entry)
    index = int(number.group()) if number else -1
    return index if 0 <= index < count else None


def _find(entry: str, uuids: Sequence[str]) -> int | None:
    found = [index for index, uuid in enumerate(uuids) if entry.startswith("GPU-") and uuid.startswith(entry)]
    return found[0] if len(found) == 1 else None


def _first_instance(gpus: Sequence[Gpu], value: str) -> list[str]:
    first = value.split(",")[0].strip()
    for gpu in gpus:
        for instance in gpu.instances or ():
            older = f"MIG-{gpu.uuid}/{instance.gpu_instance}/{instance.compute_instance}"
            if first in (instance.uuid, older):
                return [instance.uuid]
    return []
