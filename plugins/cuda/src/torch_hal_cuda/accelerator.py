"""GPUs of torch's device type ``cuda``: NVIDIA's, or AMD's if torch is built for ROCm."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch

from torch_hal.accelerators import Accelerator
from torch_hal.errors import BackendError, ConfigurationError, quoted
from torch_hal_cuda import detect
from torch_hal_cuda.pick import find_usable_cuda_devices
from torch_hal_cuda.stats import DeviceStats

__all__ = ["CUDAAccelerator"]

_log = logging.getLogger(__name__)

_MATMUL_PRECISIONS = ("highest", "high", "medium")


class CUDAAccelerator(Accelerator):
    """GPUs of torch's device type ``cuda``; one process uses one of them.

    Counting GPUs does not start CUDA, so the process can still fork. The arguments are process-wide settings of torch:
    they apply from the setup of a device until teardown. ``None`` leaves a setting unchanged.

    Args:
        float32_matmul_precision: ``"highest"`` (float32 throughout), ``"high"`` (TF32 or better) or ``"medium"``
            (bfloat16 or better) for products of float32 matrices; :func:`torch.set_float32_matmul_precision`.
        cudnn_allow_tf32: Whether cuDNN can use TF32 for float32 convolutions; ``torch.backends.cudnn.allow_tf32``.
        cudnn_benchmark: Whether cuDNN benchmarks its algorithms for each new shape and uses the fastest;
            ``torch.backends.cudnn.benchmark``.
        cudnn_deterministic: Whether cuDNN uses deterministic algorithms only; ``torch.backends.cudnn.deterministic``.
        auto_select_gpus: Whether ``devices=k`` selects GPUs that no other process uses, instead of the first ones; see
            :func:`torch_hal_cuda.find_usable_cuda_devices`.

    Raises:
        ConfigurationError: An argument has an invalid value.
    """

    out_of_memory_texts = ("CUDA_ERROR_OUT_OF_MEMORY", "cudaErrorMemoryAllocation")
    device_family = "GPU"
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
                raise ConfigurationError(f"{name}={value!r}: expected True or False.")
        self.auto_select_gpus = auto_select_gpus
        self._matmul_precision = float32_matmul_precision
        self._cudnn = {name: value for name, value in cudnn.items() if value is not None}
        self._undo: list[Callable[[], Any]] = []
        self._stats = DeviceStats()

    # -- finding and choosing ------------------------------------------------------------------------------------

    def is_available(self) -> bool:
        """Return whether this process can use a GPU; if counting fails, log the reason and return ``False``."""
        try:
            return self._detected > 0
        except (RuntimeError, OSError) as error:
            _log.warning("GPUs cannot be used: %s", error)
            return False

    def auto_device_count(self) -> int:
        """Return the number of GPUs that this process can use, as ``CUDA_VISIBLE_DEVICES`` or ROCm's variables say.

        Raises:
            BackendError: Counting failed.
        """
        try:
            return self._detected
        except (RuntimeError, OSError) as error:
            raise BackendError(f"accelerator {self.name!r}: counting GPUs failed: {error}") from error

    @cached_property
    def _detected(self) -> int:
        return detect.count()

    def get_parallel_devices(self, devices: Any) -> list[torch.device]:
        """Return the GPUs at these indices, among those that this process sees."""
        return [torch.device("cuda", index) for index in devices]

    def pick_devices(self, count: int) -> list[int]:
        """Return the first ``count`` GPUs; with ``auto_select_gpus``, the first that no other process uses."""
        return self.pick_idle_devices(count) if self.auto_select_gpus else super().pick_devices(count)

    def pick_idle_devices(self, count: int) -> list[int]:
        """Return the first ``count`` GPUs that no other process uses."""
        return find_usable_cuda_devices(count)

    # -- using ---------------------------------------------------------------------------------------------------

    def setup_device(self, device: torch.device) -> None:
        """Make ``device`` the current device of this thread, and apply the settings once."""
        super().setup_device(device)
        if not self._undo:
            self._apply()

    def _apply(self) -> None:
        if self._matmul_precision is not None:
            before = torch.get_float32_matmul_precision()
            torch.set_float32_matmul_precision(self._matmul_precision)
            self._undo.append(lambda: torch.set_float32_matmul_precision(before))
        for name, value in self._cudnn.items():
            self._undo.append(_restore(name))
            setattr(torch.backends.cudnn, name, value)

    def teardown(self) -> None:
        """Restore torch's settings, and close the management library."""
        while self._undo:
            self._undo.pop()()
        self._stats.close()

    def get_device_stats(self, device: str | torch.device) -> dict[str, Any]:
        """Return the state of ``device``, which must be in use.

        ``memory_allocated_bytes`` (by tensors), ``memory_allocated_peak_bytes``, ``memory_reserved_bytes`` (by torch),
        ``memory_free_bytes``, ``memory_total_bytes``. For NVIDIA GPUs, if ``nvidia-ml-py`` is installed, also
        ``utilization_percent``, ``memory_used_bytes`` (by all processes), ``temperature_celsius`` and ``power_watts``;
        values that a device does not report, such as the power of a MIG instance, are left out.

        Raises:
            BackendError: The management library fails after it worked before.
        """
        return self._stats.read(torch.device(device))

    def fork_unsafe_reason(self) -> str | None:
        """Return that CUDA is initialized in this process, if it is: a forked process cannot use it."""
        is_initialized: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        return "torch.cuda is already initialized" if is_initialized else None


def _restore(name: str) -> Callable[[], None]:
    before = getattr(torch.backends.cudnn, name)
    return lambda: setattr(torch.backends.cudnn, name, before)
