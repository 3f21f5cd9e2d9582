"""How many GPUs can this process use: torch-free, in milliseconds, and without starting CUDA.

Nothing is imported here but where a driver is there: a machine without one is told within a tenth of a millisecond.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch_hal_cuda.visible import Gpu

__all__ = ["count", "uuids"]

_NVIDIA_SIGNS = ("proc/driver/nvidia", "sys/module/nvidia", "dev/nvidiactl", "dev/dxg")
"""One of them is there wherever NVIDIA's driver is: a server, a container, Windows' subsystem for Linux."""
_INTEGRATED_SIGNS = ("dev/nvhost-gpu", "dev/nvgpu/igpu0")
"""An integrated GPU (Tegra), whose older drivers have no management library."""


def count(environ: Mapping[str, str] | None = None, root: str = "/") -> int:
    """How many GPUs torch would find under the name ``cuda``; 0 where there is no driver.

    Args:
        environ: The environment variables; the process's own where none are given.
        root: Where the file system begins.

    Raises:
        RuntimeError: A driver is there and fails, or GPUs are there that the installed torch is not built for.
        OSError: What the driver shows cannot be read.
    """
    return len(uuids(environ, root))


def uuids(environ: Mapping[str, str] | None = None, root: str = "/") -> list[str]:
    """The UUIDs of the GPUs that :func:`count` counts; empty text for one that has none.

    They are in CUDA's order where ``CUDA_VISIBLE_DEVICES`` has UUIDs or ``CUDA_DEVICE_ORDER`` is ``PCI_BUS_ID``; else
    CUDA may put faster ones first.
    """
    environ = os.environ if environ is None else environ
    nvidia = sys.platform == "win32" or _shows(_NVIDIA_SIGNS + _INTEGRATED_SIGNS, root)
    if not (nvidia or _shows(("dev/kfd",), root)):
        return []
    from torch_hal_cuda import build

    built_for = build.installed()
    if built_for == "hip":
        from torch_hal_cuda import rocm

        return rocm.visible(rocm.gpus(root), environ)
    from torch_hal_cuda.visible import visible

    words = environ.get("CUDA_VISIBLE_DEVICES")
    found = visible(_nvidia_gpus(root, words), words) if nvidia else []
    if found and built_for == "cpu":
        raise RuntimeError(
            f"{len(found)} NVIDIA GPU(s) are there, but the installed torch is built without CUDA. Valid: a torch that "
            "is built for CUDA."
        )
    return found


def _shows(signs: tuple[str, ...], root: str) -> bool:
    return any(os.path.exists(os.path.join(root, sign)) for sign in signs)


def _nvidia_gpus(root: str, words: str | None) -> list[Gpu]:
    from torch_hal_cuda import kernel, nvml
    from torch_hal_cuda.visible import Gpu

    found = nvml.gpus()
    if found is None:
        found = kernel.gpus(root)
        if found and words is not None and words.strip().startswith("MIG-"):
            raise RuntimeError(
                f"CUDA_VISIBLE_DEVICES={words!r}: {nvml.NAME}, which alone knows of MIG, cannot be used here. Valid: "
                "that library (in a container: driver capability 'utility')."
            )
    return found or ([Gpu("")] if _shows(_INTEGRATED_SIGNS, root) else [])
