"""NVIDIA's management library through its Python package ``nvidia-ml-py``, if that is installed."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType
from typing import Any

import torch

from torch_hal.errors import BackendError

__all__ = ["Management", "is_installed", "uuid_of"]


def is_installed() -> bool:
    """Return whether ``nvidia-ml-py`` is installed."""
    return importlib.util.find_spec("pynvml") is not None


class Management:
    """The library, initialized until :meth:`close`.

    Raises:
        BackendError: The library fails; methods raise it too.
    """

    def __init__(self) -> None:
        self.nvml: ModuleType = importlib.import_module("pynvml")
        self._handles: dict[str, Any] = {}
        self._call("nvmlInit")

    def close(self) -> None:
        """Shut the library down."""
        self._call("nvmlShutdown")

    def handle(self, uuid: str) -> Any:
        """Return the library's handle of the device with CUDA's ``uuid``, a GPU or a MIG instance.

        The indices of CUDA and of the library differ with ``CUDA_VISIBLE_DEVICES``, ``CUDA_DEVICE_ORDER`` and MIG.
        """
        if uuid not in self._handles:
            self._handles[uuid] = self._find(uuid)
        return self._handles[uuid]

    def ask(self, function: str, *arguments: Any) -> Any:
        """Call ``function`` of the library; return ``None`` if it is not supported for this device or user."""
        nvml = self.nvml
        denied = (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_NO_PERMISSION, nvml.NVML_ERROR_NOT_FOUND)
        return self._call(function, *arguments, none_where=denied)

    def _find(self, uuid: str) -> Any:
        nvml, function = self.nvml, "nvmlDeviceGetHandleByUUID"
        absent = (nvml.NVML_ERROR_NOT_FOUND, nvml.NVML_ERROR_INVALID_ARGUMENT)
        handle = self._call(function, f"GPU-{uuid}", none_where=absent)
        return self._call(function, f"MIG-{uuid}") if handle is None else handle

    def _call(self, function: str, *arguments: Any, none_where: tuple[int, ...] = ()) -> Any:
        try:
            return getattr(self.nvml, function)(*arguments)
        except self.nvml.NVMLError as error:
            if error.value in none_where:
                return None
            shown = ", ".join(map(repr, arguments))
            raise BackendError(f"NVIDIA's management library: {function}({shown}) failed: {error}") from error


def uuid_of(device: torch.device) -> str:
    """Return CUDA's UUID of ``device``; starts CUDA in this process."""
    return str(torch.cuda.get_device_properties(device).uuid)
