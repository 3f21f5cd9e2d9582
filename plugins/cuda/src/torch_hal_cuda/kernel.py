"""NVIDIA's GPUs in the kernel's files, for containers without the management library."""

from __future__ import annotations

import os
import re

from torch_hal_cuda.visible import Gpu

__all__ = ["gpus"]

_MINOR = re.compile(r"^Device Minor:\s*(\d+)", re.MULTILINE)
_UUID = re.compile(r"^GPU UUID:\s*(GPU-[0-9a-f-]+)", re.MULTILINE)


def gpus(root: str = "/") -> list[Gpu]:
    """Return the GPUs that this process can use, in the order of their PCI addresses, without MIG instances.

    A container sees all GPUs of its host in ``/proc``, but has device files only for its own.
    """
    folder = os.path.join(root, "proc/driver/nvidia/gpus")
    found = []
    for bus in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        with open(os.path.join(folder, bus, "information")) as file:
            text = file.read()
        minor, uuid = _MINOR.search(text), _UUID.search(text)
        if minor and os.path.exists(os.path.join(root, f"dev/nvidia{minor[1]}")):
            found.append(Gpu(uuid[1] if uuid else ""))
    return found
