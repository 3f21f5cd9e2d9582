"""AMD's GPUs in the kernel's files, and those that this process sees."""

from __future__ import annotations

import os
from collections.abc import Mapping

from torch_hal_cuda.visible import select

__all__ = ["gpus", "visible"]

NODES = "sys/class/kfd/kfd/topology/nodes"


def gpus(root: str = "/") -> list[str]:
    """Return the UUIDs of the GPUs that this process can use, in the driver's order; empty for a GPU without one.

    Args:
        root: The root of the file system.

    Raises:
        PermissionError: This user has no permission to use the driver.
    """
    device = os.path.join(root, "dev/kfd")
    if not os.path.exists(device):
        return []
    if not os.access(device, os.R_OK | os.W_OK):
        raise PermissionError(f"{device}: no permission to use AMD's driver. Add this user to the group 'render'.")
    nodes = os.path.join(root, NODES)
    found = [_gpu(os.path.join(nodes, number)) for number in sorted(os.listdir(nodes), key=int)]
    return [uuid for uuid in found if uuid is not None]


def visible(uuids: list[str], environ: Mapping[str, str]) -> list[str]:
    """Return those of ``uuids`` that the environment variables make visible, in their order.

    ``ROCR_VISIBLE_DEVICES`` selects first, by index or UUID; among the remaining, ``HIP_VISIBLE_DEVICES`` selects by
    index, or ``CUDA_VISIBLE_DEVICES`` if that is not set.
    """
    value = environ.get("ROCR_VISIBLE_DEVICES")
    if value is not None:
        uuids = select(uuids, uuids, value)
    value = environ.get("HIP_VISIBLE_DEVICES", environ.get("CUDA_VISIBLE_DEVICES"))
    return uuids if value is None else select(uuids, uuids, value)


def _gpu(node: str) -> str | None:
    """The UUID of the GPU of ``node``; ``None`` for a CPU or another container's GPU."""
    try:
        with open(os.path.join(node, "properties")) as file:
            properties = dict(line.split() for line in file if line.strip())
    except PermissionError:
        return None
    if properties.get("simd_count", "0") == "0":
        return None
    number = int(properties.get("unique_id", "0"))
    return f"GPU-{number:016x}" if number else ""
