"""Graphcore IPUs as torch-hal uses them."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import torch

from core.accelerators import Accelerator
from core.errors import BackendError
from torch_hal_ipu import detect

__all__ = ["IPUAccelerator"]

_log = logging.getLogger(__name__)

_LARGEST_POD = 1024


class IPUAccelerator(Accelerator):
    """IPUs run whole compiled steps: tensors stay on the host, and the strategy ``ipu`` hands them over."""

    name = "ipu"
    default_strategy: ClassVar[str] = "ipu"
    default_parallel_strategy: ClassVar[str] = "ipu"
    lacks: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "eager": "poptorch compiles a module's whole step, and runs no single operation",
            "float64": "an IPU computes in float32 and float16",
            "bfloat16": "an IPU computes in float32 and float16",
            "autocast": "torch.autocast does not reach into a compiled step, and poptorch has none of its own",
            "loss_scaling": "poptorch scales a loss by loss_scaling of its own optimizers, not by a GradScaler",
            "rng_state": "the device's generator belongs to the compiled step, and starts anew with it",
            "collectives": "poptorch replicates a step over all IPUs by itself, from one process",
            "memory_stats": "memory is laid out when a step is compiled; poptorch tells nothing of it at run time",
        }
    )

    def is_available(self) -> bool:
        """Whether there is an IPU, or the IPU Model is asked for."""
        return self._detected() > 0

    def auto_device_count(self) -> int:
        """How many IPUs there are; of a pod's partition as many as poptorch says, a power of two."""
        detected = self._detected()
        if not detected or detect.uses_model() or detect.cards():
            return detected
        poptorch = _poptorch()
        count = 1
        while count < _LARGEST_POD and poptorch.ipuHardwareIsAvailable(2 * count):
            count *= 2
        return count

    def get_parallel_devices(self, devices: list[int]) -> list[torch.device]:
        """The IPUs at these indices, by name: no tensor is ever placed there."""
        return [torch.device("ipu", index) for index in devices]

    def import_backend(self) -> None:
        """Import poptorch.

        Raises:
            BackendError: It cannot be imported.
        """
        _poptorch()

    def setup_device(self, device: torch.device) -> None:
        """Nothing: poptorch attaches a compiled step to its IPUs by itself."""

    def _detected(self) -> int:
        try:
            return detect.count()
        except OSError:
            _log.warning("IPUs cannot be counted", exc_info=True)
            return 0


def _poptorch() -> Any:
    try:
        return importlib.import_module("poptorch")
    except Exception as error:  # a vendor's package may raise anything; it is the cause shown
        raise BackendError(
            f"accelerator 'ipu': poptorch cannot be imported: {type(error).__name__}: {error}. Valid: a Poplar SDK "
            "that is enabled, with the poptorch that was built for this torch."
        ) from error
