"""Detects Apple silicon with a macOS that torch supports, in microseconds and without torch."""

from __future__ import annotations

import os

__all__ = ["count"]

_DARWIN_OF_MACOS_14 = 23


def count() -> int:
    """Return 1 on Apple silicon with macOS 14 or newer, according to the kernel, and 0 anywhere else.

    Python under Rosetta sees an Intel processor: torch for Intel has no Metal.
    """
    if not hasattr(os, "uname"):
        return 0
    system = os.uname()
    if (system.sysname, system.machine) != ("Darwin", "arm64"):
        return 0
    major = system.release.partition(".")[0]
    return int(major.isdecimal() and int(major) >= _DARWIN_OF_MACOS_14)
