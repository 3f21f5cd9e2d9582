"""GPUs that torch calls ``cuda``: NVIDIA's, and AMD's where torch is built for ROCm."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch

from core.accelerators import Accelerator
from core.errors import BackendError, ConfigurationError, quoted
from torch_hal_cuda import detect
from torch_hal_cuda.pick import find_usable_cuda_devices
from torch_hal_cuda.stats import DeviceStats

__all__ = ["CUDAAccelerator"]

_log = logging.getLogger(__name__)

_MATMUL_PRECISIONS = ("highest", "high", "medium")


class CUDAAccelerator(Accelerator):
    """GPUs that torch calls ``cuda``; one process uses one of them.

    Asking whether and how many are there does not start CUDA, so that the process may still be forked. The settings
    below are torch's own, process-wide: they are made when a device is set up, and undone at teardown. ``None`` leaves
    one as it is.

    Args:
        float32_matmul_precision: ``"highest"`` (float32 throughout), ``"high"`` (TF32 or better) or ``"medium"``
            (bfloat16 or better) for products of float32 matrices; :func:`torch.set_float32_matmul_precision`.
        cudnn_allow_tf32: Whether cuDNN may use TF32 for float32 convolutions; ``torch.backends.cudnn.allow_tf32``.
        cudnn_benchmark: Whether cuDNN tries its algorithms for each shape it meets and keeps the fastest;
            ``torch.backends.cudnn.benchmark``.
        cudnn_deterministic: Whether cuDNN uses deterministic algorithms only; ``torch.backends.cudnn.deterministic``.
        auto_select_gpus: Whether a bare number of devices means so many that no other process occupies, rather than the
            first; see :func:`torch_hal_cuda.find_usable_cuda_devices`.

    Raises:
        ConfigurationError: A setting is none of its valid values.
    """

    name = "cuda"

    def __init__(
        self,
        *,
        float32_matmul_precision: str | None = None,
        cudnn_allow_tf32: bool | None = None,
        cudnn_benchmark: bool | None = None,
        cudnn_deterministic: bool | None = None,
        auto_select_gpus: bool = False,
    ) -> None:
        if float32_matmul_precision not in (None, *_MATMUL_PRECISIONS):
            raise ConfigurationError(
                f"float32_matmul_precision={float32_matmul_precision!r}: unknown. Valid: {quoted(_MATMUL_PRECISIONS)}."
            )
        cudnn = {
            "allow_tf32": cudnn_allow_tf32,
            "benchmark": cudnn_benchmark,
            "deterministic": cudnn_deterministic,
        }
        switches = {f"cudnn_{name}": value for name, value in cudnn.items()} | {"auto_select_gpus": auto_select_gpus}
        for name, value in switches.items():
            if value is not None and not isinstance(value, bool):
                raise ConfigurationError(f"{name}={value!r}: not a switch. Valid: True or False.")
        self.auto_select_gpus = auto_select_gpus
        self._matmul_precision = float32_matmul_precision
        self._cudnn = {name: value for name, value in cudnn.items() if value is not None}
        self._undo: list[Callable[[], Any]] = []
        self._stats = DeviceStats()

    # -- finding and choosing ------------------------------------------------------------------------------------

    def is_available(self) -> bool:
        """Whether this process may use a GPU; where that cannot be told, no, and the log says why."""
        try:
            return self._detected > 0
        except (RuntimeError, OSError) as error:
            _log.warning("GPUs cannot be used: %s", error)
            return False

    def auto_device_count(self) -> int:
        """How many GPUs this process may use, as ``CUDA_VISIBLE_DEVICES`` or ROCm's like has it.

        Raises:
            BackendError: That cannot be told.
        """
        try:
            return self._detected
        except (RuntimeError, OSError) as error:
            raise BackendError(f"accelerator {self.name!r}: its GPUs cannot be counted: {error}") from error

    @cached_property
    def _detected(self) -> int:
        return detect.count()

    def get_parallel_devices(self, devices: Any) -> list[torch.device]:
        """The GPUs at these indices, counted among those that this process sees."""
        return [torch.device("cuda", index) for index in devices]

    def pick_devices(self, count: int) -> list[int]:
        """The first ``count``; with ``auto_select_gpus``, of those that no other process occupies."""
        return find_usable_cuda_devices(count) if self.auto_select_gpus else super().pick_devices(count)

    # -- using ---------------------------------------------------------------------------------------------------

    def setup_device(self, device: torch.device) -> None:
        """Make ``device`` the current one of this thread, and the settings once."""
        super().setup_device(device)
        if not self._undo:
            self._apply()

    def _apply(self) -> None:
        if self._matmul_precision is not None:
            before = torch.get_float32_matmul_precision()
            torch.set_float32_matmul_precision(self._matmul_precision)
            self._undo.append(lambda: torch.set_float32_matmul_precision(before))
        for name, value in self._cudnn.items():
            self._undo.append(_undoing(name))
            setattr(torch.backends.cudnn, name, value)

    def teardown(self) -> None:
        """Undo the settings, and let go of the management library."""
        while self._undo:
            self._undo.pop()()
        self._stats.close()

    def get_device_stats(self, device: str | torch.device) -> dict[str, Any]:
        """The state of ``device``, which must be in use.

        ``memory_allocated_bytes`` (by tensors), ``memory_allocated_peak_bytes``, ``memory_reserved_bytes`` (by torch),
        ``memory_free_bytes``, ``memory_total_bytes``. Of NVIDIA's, where ``nvidia-ml-py`` is installed, also
        ``utilization_percent``, ``memory_used_bytes`` (by all processes), ``temperature_celsius`` and ``power_watts``;
        what a device does not tell (as a MIG instance its power) is left out.

        Raises:
            BackendError: The management library worked before, and fails.
        """
        return self._stats.read(torch.device(device))

    def fork_unsafe_reason(self) -> str | None:
        """That CUDA was started in this process: a forked one could not use it."""
        is_initialized: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        return "torch.cuda is initialized in it" if is_initialized else None


def _undoing(name: str) -> Callable[[], None]:
    before = getattr(torch.backends.cudnn, name)
    return lambda: setattr(torch.backends.cudnn, name, before)
