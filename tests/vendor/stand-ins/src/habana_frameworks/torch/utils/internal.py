"""The mode of the process."""

from __future__ import annotations

import os

__all__ = ["is_lazy"]


def is_lazy() -> bool:
    """Whether operations are gathered into graphs, as the environment says."""
    return os.getenv("PT_HPU_LAZY_MODE", "1") != "0"
