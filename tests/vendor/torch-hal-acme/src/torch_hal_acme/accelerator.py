"""Acme's cards as torch-hal uses them."""

from __future__ import annotations

import logging
from typing import Any

import torch

from core.accelerators import Accelerator
from torch_hal_acme import detect

__all__ = ["AcmeAccelerator"]

_log = logging.getLogger(__name__)


class AcmeAccelerator(Accelerator):
    """Acme's cards; one process uses one of them."""

    name = "acme"

    def is_available(self) -> bool:
        """Whether this machine has a card."""
        return self.auto_device_count() > 0

    def auto_device_count(self) -> int:
        """How many cards this machine has; none where they can't be counted."""
        try:
            return detect.count()
        except ValueError:
            _log.warning("Acme's cards can't be counted", exc_info=True)
            return 0

    def import_backend(self) -> None:
        """Import what gives torch the cards, where torch was kept from doing so itself."""
        import torch_acme  # noqa: F401 - not at the top: asking for availability takes no more than counting

    def get_parallel_devices(self, devices: list[int]) -> list[torch.device]:
        """The cards at these indices."""
        return [torch.device("acme", index) for index in devices]

    def get_device_stats(self, device: str | torch.device) -> dict[str, Any]:
        """Memory in bytes: by tensors now and at most, free, in total."""
        acme = torch.get_device_module("acme")
        free, total = acme.mem_get_info(device)
        return {
            "memory_allocated_bytes": acme.memory_allocated(device),
            "memory_allocated_peak_bytes": acme.max_memory_allocated(device),
            "memory_free_bytes": free,
            "memory_total_bytes": total,
        }

    def fork_unsafe_reason(self) -> str | None:
        """That this process uses cards: they are lost to a forked one."""
        acme = getattr(torch, "acme", None)
        return "it uses Acme cards" if acme is not None and acme.is_initialized() else None
