"""Gaudi cards, which torch calls ``hpu``."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable
from types import MappingProxyType, ModuleType
from typing import Any

import torch

from core.accelerators import Accelerator
from core.errors import BackendError
from torch_hal_hpu import cards, detect

__all__ = ["HPUAccelerator"]

_log = logging.getLogger(__name__)

_LIBRARY = "habana_frameworks.torch"


class HPUAccelerator(Accelerator):
    """Gaudi cards; a process works on one of them, for as long as it lives.

    ``devices=`` counts the cards that a process may use: ``hpu:1`` in a Plan is the second one. Inside the process that
    works on it, it is ``hpu:0``, as any card is. Asking whether and how many are there takes none into use.
    """

    name = "hpu"
    default_strategy = "hpu_single"
    default_parallel_strategy = "hpu_parallel"
    lacks = MappingProxyType({"float64": "Gaudi has no double precision"})

    def is_available(self) -> bool:
        """Whether this process may use a card, and Intel's library is there; the log says why not."""
        try:
            return detect.count() > 0
        except (RuntimeError, ValueError, OSError) as error:
            _log.warning("Gaudi cards cannot be used: %s", error)
            return False

    def auto_device_count(self) -> int:
        """How many cards this process may use, as ``HABANA_VISIBLE_MODULES`` has it.

        Raises:
            BackendError: That cannot be told.
        """
        try:
            return detect.count()
        except (RuntimeError, ValueError, OSError) as error:
            raise BackendError(f"accelerator {self.name!r}: its cards cannot be counted: {error}") from error

    def get_parallel_devices(self, devices: Any) -> list[torch.device]:
        """The cards at these indices."""
        return [torch.device("hpu", index) for index in devices]

    def import_backend(self) -> None:
        """Import Intel's library, which gives torch the cards, and the collectives ``hccl``."""
        importlib.import_module(f"{_LIBRARY}.core")
        importlib.import_module(f"{_LIBRARY}.distributed.hccl")

    def setup_device(self, device: torch.device) -> None:
        """Take ``device`` into use as the card that this process works on, and seed its generator as torch's own is.

        The library seeds it with ``torch.manual_seed``, but only once it is imported: what was seeded before is made up
        for here. A generator that has torch's seed is left alone, however much it has drawn.

        Raises:
            BackendError: This process works on another card.
        """
        cards.bind(device.index or 0)
        self.own_device()
        cards.release()
        seed, random = torch.initial_seed(), _module("hpu.random")
        if random.initial_seed() != seed:
            random.manual_seed(seed)

    def own_device(self) -> torch.device:
        """The card that this process works on, as torch calls it here; it is taken into use."""
        return torch.device("hpu", _module("hpu").current_device())

    def step_mark(self) -> Callable[[], None] | None:
        """What tells the library that a step ends; ``None`` in eager mode, which needs no telling.

        The mode is the library's: it reads ``PT_HPU_LAZY_MODE`` when it is imported.
        """
        if not _module("utils.internal").is_lazy():
            return None
        mark_step: Callable[[], None] = _module("core").mark_step
        return mark_step

    def teardown(self) -> None:
        """Take back what was said of the process's card."""
        cards.release()

    def get_device_stats(self, device: str | torch.device) -> dict[str, Any]:
        """Memory of ``device``, as the library counts it.

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
        """That this process works on a card: a forked one could not."""
        hpu = sys.modules.get(f"{_LIBRARY}.hpu")
        return "it works on a Gaudi card" if hpu is not None and hpu.is_initialized() else None


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"{_LIBRARY}.{name}")
