"""Counts the Intel GPUs that this process can use: without torch, from Intel's driver.

Without an Intel GPU it reads a few files and imports nothing.
"""

from __future__ import annotations

import os
import sys

__all__ = ["count"]

ROOT = "/"
"""The root of the file system."""

_INTEL = "0x8086"


def count() -> int:
    """Return the number of GPUs that torch finds as ``xpu``; 0 without one.

    As in torch, integrated GPUs count only if there is no discrete one. The driver itself applies ``ZE_AFFINITY_MASK``.

    Raises:
        RuntimeError: The driver is missing or fails, or the installed torch is not built for XPU.
        OSError: The kernel's files cannot be read.
    """
    if not _shows_a_gpu():
        return 0
    from torch_hal_xpu import build, level_zero

    found = level_zero.gpus()
    if found is None:
        if sys.platform == "win32":  # where nothing else has shown a GPU
            return 0
        raise RuntimeError(
            f"found an Intel GPU, but not {level_zero.NAME}, the loader of its driver. Install Intel's GPU driver, "
            "see https://dgpu-docs.intel.com."
        )
    number = sum(not is_integrated for is_integrated in found) or len(found)
    if number and not build.has_xpu():
        raise RuntimeError(
            f"found {number} Intel GPU(s), but the installed torch is built without XPU. Install a torch build with "
            "XPU, see https://pytorch.org/get-started/locally."
        )
    return number


def _shows_a_gpu() -> bool:
    """Whether the kernel shows an Intel GPU, or cannot say so: on Windows, and in its subsystem for Linux."""
    if sys.platform == "win32" or os.path.exists(os.path.join(ROOT, "dev/dxg")):
        return True
    drm = os.path.join(ROOT, "sys/class/drm")
    try:
        names = os.listdir(drm)
    except FileNotFoundError:
        return False
    # A container sees all GPUs of its machine in /sys, but has device files only for its own.
    return any(
        name.startswith("renderD")
        and _text(os.path.join(drm, name, "device", "vendor")) == _INTEL
        and os.path.exists(os.path.join(ROOT, "dev/dri", name))
        for name in names
    )


def _text(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read().strip()
    except FileNotFoundError:
        return ""
