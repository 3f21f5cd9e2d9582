"""Counts the GPUs that this process can use: without torch, in milliseconds, and without starting CUDA.

It imports modules only if a driver exists: without one it takes a tenth of a millisecond.
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
"""One of these files exists with NVIDIA's driver: on a server, in a container, in Windows' subsystem for Linux."""
_INTEGRATED_SIGNS = ("dev/nvhost-gpu", "dev/nvgpu/igpu0")
"""Files of an integrated GPU (Tegra), whose older drivers have no management library."""


def count(environ: Mapping[str, str] | None = None, root: str = "/") -> int:
    """Return the number of GPUs that torch would find as ``cuda``; 0 without a driver.

    Args:
        environ: The environment variables; by default the process's own.
        root: The root of the file system.

    Raises:
        RuntimeError: The driver fails, or the installed torch is not built for the GPUs.
        OSError: The driver's files cannot be read.
    """
    return len(uuids(environ, root))


def uuids(environ: Mapping[str, str] | None = None, root: str = "/") -> list[str]:
    """Return the UUIDs of the GPUs that :func:`count` counts; an empty string for a GPU without one.

    They are in CUDA's order if ``CUDA_VISIBLE_DEVICES`` has UUIDs or ``CUDA_DEVICE_ORDER`` is ``PCI_BUS_ID``; otherwise
    CUDA may put faster GPUs first.
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

    value = environ.get("CUDA_VISIBLE_DEVICES")
    found = visible(_nvidia_gpus(root, value), value) if nvidia else []
    if found and built_for == "cpu":
        raise RuntimeError(
            f"found {len(found)} NVIDIA GPU(s), but the installed torch is built without CUDA. Install a torch build "
            "with CUDA, see https://pytorch.org/get-started/locally."
        )
    return found


def _shows(signs: tuple[str, ...], root: str) -> bool:
    return any(os.path.exists(os.path.join(root, sign)) for sign in signs)


def _nvidia_gpus(root: str, value: str | None) -> list[Gpu]:
    from torch_hal_cuda import kernel, nvml
    from torch_hal_cuda.visible import Gpu

    found = nvml.gpus()
    if found is None:
        found = kernel.gpus(root)
        if found and value is not None and value.strip().startswith("MIG-"):
            raise RuntimeError(
                f"CUDA_VISIBLE_DEVICES={value!r}: {nvml.NAME} is needed for MIG, but cannot be used here. Install it "
                "(in a container: driver capability 'utility')."
            )
    return found or ([Gpu("")] if _shows(_INTEGRATED_SIGNS, root) else [])
