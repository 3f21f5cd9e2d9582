"""Ascend NPUs, torch's device type ``npu``."""

from __future__ import annotations

import importlib
import logging
from typing import Any

import torch

from torch_hal.accelerators import Accelerator, memory_stats
from torch_hal.errors import BackendError
from torch_hal_npu import detect

__all__ = ["NPUAccelerator"]

_log = logging.getLogger(__name__)


class NPUAccelerator(Accelerator):
    """Ascend NPUs; one process uses one of them. Counting NPUs initializes none."""

    out_of_memory_texts = ("EL0004", "failed to allocate memory")
    device_family = "NPU"
    name = "npu"

    def is_available(self) -> bool:
        """Return whether this process can use an NPU, with ``torch_npu`` installed; otherwise log the reason."""
        try:
            return detect.count() > 0
        except (RuntimeError, ValueError, OSError) as error:
            _log.warning("Ascend NPUs cannot be used: %s", error)
            return False

    def auto_device_count(self) -> int:
        """Return the number of NPUs that this process can use, as ``ASCEND_RT_VISIBLE_DEVICES`` says.

        Raises:
            BackendError: Counting failed.
        """
        try:
            return detect.count()
        except (RuntimeError, ValueError, OSError) as error:
            raise BackendError(f"accelerator {self.name!r}: counting NPUs failed: {error}") from error

    def get_parallel_devices(self, devices: Any) -> list[torch.device]:
        """Return the NPUs at these indices, among those that this process sees."""
        return [torch.device("npu", index) for index in devices]

    def import_backend(self) -> None:
        """Import ``torch_npu``, which adds the device type and the collective backend ``hccl`` to torch.

        Raises:
            BackendError: It cannot be imported, such as without Ascend's toolkit.
        """
        try:
            importlib.import_module("torch_npu")
        except (ImportError, OSError, RuntimeError) as error:
            raise BackendError(
                f"accelerator {self.name!r}: torch_npu cannot be imported: {error}. Install the version that belongs "
                f"to torch {torch.__version__}, and load the environment of Ascend's toolkit: source set_env.sh"
            ) from error

    def get_device_stats(self, device: str | torch.device) -> dict[str, Any]:
        """Return the memory of ``device``, which must be in use; see :func:`core.accelerators.memory_stats`."""
        return memory_stats(device)

    def fork_unsafe_reason(self) -> str | None:
        """Return that an NPU is in use in this process, if it is: a forked process cannot use it."""
        npu = getattr(torch, "npu", None)
        return "torch.npu is already initialized" if npu is not None and npu.is_initialized() else None
