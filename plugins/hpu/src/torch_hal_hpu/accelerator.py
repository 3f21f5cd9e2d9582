"""Gaudi cards, torch's device type ``hpu``."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable
from types import MappingProxyType, ModuleType
from typing import Any

import torch

from torch_hal.accelerators import Accelerator
from torch_hal.errors import BackendError
from torch_hal_hpu import cards, detect

__all__ = ["HPUAccelerator"]

_log = logging.getLogger(__name__)

_LIBRARY = "habana_frameworks.torch"


class HPUAccelerator(Accelerator):
    """Gaudi cards; a process uses one of them for its lifetime.

    ``devices=`` refers to the cards that a process can use: ``hpu:1`` in a Plan is the second one. In the process that
    uses it, any card is ``hpu:0``. Counting cards initializes none.
    """

    name = "hpu"
    out_of_memory_texts = ("devmem allocation failed",)
    default_strategy = "hpu_single"
    default_parallel_strategy = "hpu_parallel"
    unsupported = MappingProxyType({"float64": "Gaudi has no double precision"})

    def is_available(self) -> bool:
        """Return whether this process can use a card, with Intel's library installed; otherwise log the reason."""
        try:
            return detect.count() > 0
        except (RuntimeError, ValueError, OSError) as error:
            _log.warning("counting Gaudi cards failed; they are treated as unavailable: %s", error)
            return False

    def auto_device_count(self) -> int:
        """Return the number of cards that this process can use, according to ``HABANA_VISIBLE_MODULES``.

        Raises:
            BackendError: Counting failed.
        """
        try:
            return detect.count()
        except (RuntimeError, ValueError, OSError) as error:
            raise BackendError(f"accelerator {self.name!r}: counting cards failed: {error}") from error

    def get_parallel_devices(self, devices: Any) -> list[torch.device]:
        """Return the cards at these indices."""
        return [torch.device("hpu", index) for index in devices]

    def import_backend(self) -> None:
        """Import Intel's library, which adds the device type and the collective backend ``hccl`` to torch."""
        importlib.import_module(f"{_LIBRARY}.core")
        importlib.import_module(f"{_LIBRARY}.distributed.hccl")

    def setup_device(self, device: torch.device) -> None:
        """Make ``device`` the card of this process, and seed its generator like torch's own.

        Once the library is imported, ``torch.manual_seed`` also seeds the card; this applies a seed from before. A
        generator that already has torch's seed is left unchanged.

        Raises:
            BackendError: This process already uses another card.
        """
        cards.bind(device.index or 0)
        self.own_device()
        cards.release()
        seed, random = torch.initial_seed(), _module("hpu.random")
        if random.initial_seed() != seed:
            random.manual_seed(seed)

    def own_device(self) -> torch.device:
        """Return the card of this process under torch's name for it, and initialize it."""
        return torch.device("hpu", _module("hpu").current_device())

    def step_mark(self) -> Callable[[], None] | None:
        """Return the function that marks the end of a step; ``None`` in eager mode, which needs no marks.

        The library sets the mode: it reads ``PT_HPU_LAZY_MODE`` when it is imported.
        """
        if not _module("utils.internal").is_lazy():
            return None
        mark_step: Callable[[], None] = _module("core").mark_step
        return mark_step

    def teardown(self) -> None:
        """Reset the environment variable for the process's card."""
        cards.release()

    def get_device_stats(self, device: str | torch.device) -> dict[str, Any]:
        """Return the memory of ``device`` according to the library.

        ``memory_allocated_bytes`` (by tensors), ``memory_allocated_peak_bytes``, ``memory_free_bytes`` and
        ``memory_total_bytes``.
        """
        stats = _module("hpu").memory_stats(torch.device(device))
        return {
            "memory_allocated_bytes": stats["InUse"],
            "memory_allocated_peak_bytes": stats["MaxInUse"],
            "memory_free_bytes": stats["Limit"] - stats["InUse"],
            "memory_total_bytes": stats["Limit"],
        }

    def fork_unsafe_reason(self) -> str | None:
        """Return that this process uses a card, if it does: a forked process cannot use it."""
        hpu = sys.modules.get(f"{_LIBRARY}.hpu")
        return "a Gaudi card is already in use" if hpu is not None and hpu.is_initialized() else None


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"{_LIBRARY}.{name}")
