"""Is this Apple silicon, with a macOS that torch computes on: torch-free, in microseconds."""

from __future__ import annotations

import os

__all__ = ["count"]

_DARWIN_OF_MACOS_14 = 23


def count() -> int:
    """One where the kernel is that of macOS 14 or newer on Apple silicon, 0 anywhere else.

    Python under Rosetta is told that the processor is Intel's: torch for Intel has no Metal.
    """
    if not hasattr(os, "uname"):
        return 0
    system = os.uname()
    if (system.sysname, system.machine) != ("Darwin", "arm64"):
        return 0
    major = system.release.partition(".")[0]
    return int(major.isdecimal() and int(major) >= _DARWIN_OF_MACOS_14)
