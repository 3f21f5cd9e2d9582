"""Intel Gaudi in torch-hal. Importing this package does not import torch."""

from __future__ import annotations

from torch_hal.utilities.lazy import lazy_names

TYPE_CHECKING = False  # detection imports this module, and should import little else
if TYPE_CHECKING:
    from torch_hal_hpu.accelerator import HPUAccelerator
    from torch_hal_hpu.strategies import HPUParallelStrategy, SingleHPUStrategy

__all__ = ["HPUAccelerator", "HPUParallelStrategy", "SingleHPUStrategy"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "HPUAccelerator": "torch_hal_hpu.accelerator",
        "HPUParallelStrategy": "torch_hal_hpu.strategies",
        "SingleHPUStrategy": "torch_hal_hpu.strategies",
    },
)
