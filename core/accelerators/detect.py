"""How many devices of core's own accelerators are there: torch-free, quick."""

from __future__ import annotations

__all__ = ["cpu"]


def cpu() -> int:
    """One: the host itself, which any number of processes share."""
    return 1
