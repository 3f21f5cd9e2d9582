"""Graphcore IPUs as an accelerator."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import torch

from torch_hal.accelerators import Accelerator
from torch_hal.errors import BackendError
from torch_hal_ipu import detect

__all__ = ["IPUAccelerator"]

_log = logging.getLogger(__name__)

_LARGEST_POD = 1024


class IPUAccelerator(Accelerator):
    """IPUs run whole compiled steps: tensors stay on the host, and the strategy ``ipu`` transfers them."""

    name = "ipu"
    out_of_memory_texts: ClassVar[tuple[str, ...]] = ("memory_allocation_err",)
    default_strategy: ClassVar[str] = "ipu"
    default_parallel_strategy: ClassVar[str] = "ipu"
    unsupported: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "eager": "poptorch compiles a module's whole step, and runs no single operation",
            "float64": "an IPU computes in float32 and float16",
            "bfloat16": "an IPU computes in float32 and float16",
            "autocast": "torch.autocast has no effect in a compiled step, and poptorch has no autocast",
            "loss_scaling": "poptorch scales a loss by loss_scaling of its own optimizers, not by a GradScaler",
            "rng_state": "the device's generator is part of the compiled step, and restarts with it",
            "collectives": "poptorch replicates a step over all IPUs by itself, from one process",
            "memory_stats": "memory is planned when a step is compiled; poptorch does not report it at run time",
        }
    )

    def is_available(self) -> bool:
        """Return whether there is an IPU or the IPU Model."""
        return self._detected() > 0

    def auto_device_count(self) -> int:
        """Return the number of IPUs; for a pod's partition the number that poptorch reports, a power of two."""
        detected = self._detected()
        if not detected or detect.uses_model() or detect.cards():
            return detected
        poptorch = _poptorch()
        count = 1
        while count < _LARGEST_POD and poptorch.ipuHardwareIsAvailable(2 * count):
            count *= 2
        return count

    def get_parallel_devices(self, devices: list[int]) -> list[torch.device]:
        """Return the IPUs at these indices; they are only names, tensors are never placed there."""
        return [torch.device("ipu", index) for index in devices]

    def import_backend(self) -> None:
        """Import poptorch.

        Raises:
            BackendError: Importing poptorch failed.
        """
        _poptorch()

    def setup_device(self, device: torch.device) -> None:
        """Do nothing: poptorch itself attaches compiled steps to IPUs."""

    def _detected(self) -> int:
        try:
            return detect.count()
        except OSError:
            _log.warning("counting IPUs failed; they are treated as unavailable", exc_info=True)
            return 0


def _poptorch() -> Any:
    try:
        return importlib.import_module("poptorch")
    except Exception as error:  # a vendor's package can raise anything
        raise BackendError(
            f"accelerator='ipu': importing poptorch failed: {type(error).__name__}: {error}. Enable a Poplar SDK, and "
            "install the poptorch that is built for this torch."
        ) from error
