"""Freeing what a run no longer needs."""

from __future__ import annotations

import gc
from typing import Any

import torch

from .prepare.preparing import Preparing

__all__ = ["MemoryRelease", "release_memory"]


class MemoryRelease(Preparing):
    """The part of :class:`core.Runtime` that frees memory."""

    def free_memory(self, *objects: Any) -> list[None]:
        """Forget all prepared objects, and return the device's unused memory to it.

        ::

            model, optimizer = runtime.free_memory(model, optimizer)

        Args:
            *objects: What the caller holds.

        Returns:
            ``None`` for each object, to assign to the names that hold them: memory is freed when nothing refers to it.
        """
        self._forget()
        gc.collect()
        if self._is_live:
            self._bind_step()
            self._strategy.accelerator.empty_cache(self.device)
        return [None] * len(objects)

    def clear(self, *objects: Any) -> list[None]:
        """The same as :meth:`free_memory`, under Accelerate's other name."""
        return self.free_memory(*objects)


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
