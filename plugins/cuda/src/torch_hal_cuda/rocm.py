"""AMD's GPUs as the kernel shows them: which there are, and which this process sees."""

from __future__ import annotations

import os
from collections.abc import Mapping

from torch_hal_cuda.visible import select

__all__ = ["gpus", "visible"]

NODES = "sys/class/kfd/kfd/topology/nodes"


def gpus(root: str = "/") -> list[str]:
    """The UUIDs of the GPUs that this process may use, in the driver's order; empty text for one that has none.

    Args:
        root: Where the file system begins.

    Raises:
        PermissionError: The driver is there, but this user may not use it.
    """
    device = os.path.join(root, "dev/kfd")
    if not os.path.exists(device):
        return []
    if not os.access(device, os.R_OK | os.W_OK):
        raise PermissionError(f"{device}: AMD's driver is there, but this user may not use it (group 'render')")
    nodes = os.path.join(root, NODES)
    found = [_gpu(os.path.join(nodes, number)) for number in sorted(os.listdir(nodes), key=int)]
    return [uuid for uuid in found if uuid is not None]


def visible(uuids: list[str], environ: Mapping[str, str]) -> list[str]:
    """Those of ``uuids`` that the environment lets a process see, in its order.

    ``ROCR_VISIBLE_DEVICES`` chooses first, by index or UUID; of what it leaves, ``HIP_VISIBLE_DEVICES`` by index, or
    ``CUDA_VISIBLE_DEVICES`` where that is not set.
    """
    words = environ.get("ROCR_VISIBLE_DEVICES")
    if words is not None:
        uuids = select(uuids, uuids, words)
    words = environ.get("HIP_VISIBLE_DEVICES", environ.get("CUDA_VISIBLE_DEVICES"))
    return uuids if words is None else select(uuids, uuids, words)


def _gpu(node: str) -> str | None:
    """The UUID of what ``node`` shows; ``None`` where that is a CPU, or a GPU of another container."""
    try:
        with open(os.path.join(node, "properties")) as file:
            properties = dict(line.split() for line in file if line.strip())
    except PermissionError:
        return None
    if properties.get("simd_count", "0") == "0":
        return None
    number = int(properties.get("unique_id", "0"))
    return f"GPU-{number:016x}" if number else ""
