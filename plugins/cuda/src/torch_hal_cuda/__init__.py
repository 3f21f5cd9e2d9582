"""NVIDIA and AMD GPUs in torch-hal. Importing this package does not import torch."""

from __future__ import annotations

from torch_hal.utilities.lazy import lazy_names

TYPE_CHECKING = False  # detection imports this module, and should import little else
if TYPE_CHECKING:
    from torch_hal_cuda.accelerator import CUDAAccelerator
    from torch_hal_cuda.pick import find_usable_cuda_devices

__all__ = ["CUDAAccelerator", "find_usable_cuda_devices"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "CUDAAccelerator": "torch_hal_cuda.accelerator",
        "find_usable_cuda_devices": "torch_hal_cuda.pick",
    },
)
