"""Which devices the environment lets a process see: the grammar of ``CUDA_VISIBLE_DEVICES`` and its relatives.

The driver never refuses a value: it takes what it understands and stops at the first word that it does not, so a typing
error hides devices. This module does as the driver does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeVar

__all__ = ["Gpu", "MigInstance", "select", "visible"]

T = TypeVar("T")

# The beginning of a word counts, as in C's strtol: "1gpu" is 1.
_NUMBER = re.compile(r"\s*[+-]?\d+", re.ASCII)


class MigInstance:
    """A compute instance of a GPU that is in MIG mode."""

    def __init__(self, uuid: str, gpu_instance: int, compute_instance: int) -> None:
        self.uuid = uuid
        """As the driver says it: ``MIG-<uuid>``; of older drivers ``MIG-GPU-<uuid>/<gi>/<ci>``."""
        self.gpu_instance = gpu_instance
        self.compute_instance = compute_instance


class Gpu:
    """A GPU of this machine."""

    def __init__(self, uuid: str, instances: Sequence[MigInstance] | None = None) -> None:
        self.uuid = uuid
        """``GPU-<uuid>``; empty where the driver tells none."""
        self.instances = instances
        """Its compute instances where it is in MIG mode, else ``None``."""


def visible(gpus: Sequence[Gpu], words: str | None) -> list[str]:
    """The UUIDs of the CUDA devices that a process has, in its order.

    A process that sees a compute instance of a GPU in MIG mode has that one alone: CUDA enumerates the first of them,
    and then no GPU beside it.

    Args:
        gpus: This machine's, in the driver's order.
        words: ``CUDA_VISIBLE_DEVICES``: indices, UUIDs of GPUs or beginnings of them, or UUIDs of compute instances,
            separated by commas; ``None`` where it is not set.
    """
    if words is not None and words.strip().startswith("MIG-"):
        return _first_instance(gpus, words)
    chosen = list(gpus) if words is None else select(gpus, [gpu.uuid for gpu in gpus], words)
    instances = [instance.uuid for gpu in chosen for instance in gpu.instances or ()]
    return instances[:1] or [gpu.uuid for gpu in chosen if gpu.instances is None]


def select(items: Sequence[T], uuids: Sequence[str], words: str) -> list[T]:
    """Those of ``items`` that ``words`` names, up to the first word that names none; none at all if one is named twice.

    Args:
        items: What there is, by index.
        uuids: The UUID of each.
        words: Indices; or, where the first is one, UUIDs or beginnings that only one UUID has; separated by commas.
    """
    by_uuid = words.strip().startswith("GPU-")
    chosen: list[int] = []
    for word in words.split(","):
        index = _named(word.strip(), uuids) if by_uuid else _numbered(word, len(items))
        if index is None:
            break
        if index in chosen:
            return []
        chosen.append(index)
    return [items[index] for index in chosen]


def _numbered(word: str, count: int) -> int | None:
    number = _NUMBER.match(word)
    index = int(number.group()) if number else -1
    return index if 0 <= index < count else None


def _named(word: str, uuids: Sequence[str]) -> int | None:
    found = [index for index, uuid in enumerate(uuids) if word.startswith("GPU-") and uuid.startswith(word)]
    return found[0] if len(found) == 1 else None


def _first_instance(gpus: Sequence[Gpu], words: str) -> list[str]:
    word = words.split(",")[0].strip()
    for gpu in gpus:
        for instance in gpu.instances or ():
            older = f"MIG-{gpu.uuid}/{instance.gpu_instance}/{instance.compute_instance}"
            if word in (instance.uuid, older):
                return [instance.uuid]
    return []
