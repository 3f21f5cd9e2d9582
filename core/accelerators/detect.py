"""Device counts of core's own accelerators, quick and without torch."""

from __future__ import annotations

__all__ = ["cpu"]


def cpu() -> int:
    """Return 1: the host itself, which any number of processes share."""
    return 1
