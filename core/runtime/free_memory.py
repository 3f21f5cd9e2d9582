"""Freeing what a run no longer needs."""

from __future__ import annotations

import gc
from typing import Any

import torch

__all__ = ["release_memory"]


def release_memory(*objects: Any) -> list[None]:
    """Collect garbage, and return the unused memory of torch's current accelerator to it.

    ::

        model, optimizer = release_memory(model, optimizer)

    Args:
        *objects: What the caller holds.

    Returns:
        ``None`` for each object, to assign to the names that hold them: memory is freed when nothing refers to it.
    """
    gc.collect()
    if torch.accelerator.is_available():
        empty_cache = getattr(torch.get_device_module(), "empty_cache", None)
        if empty_cache is not None:
            empty_cache()
    return [None] * len(objects)
