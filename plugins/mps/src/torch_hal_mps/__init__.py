"""The GPU of Apple silicon in torch-hal. Importing this package does not import torch."""

from __future__ import annotations

from torch_hal.utilities.lazy import lazy_names

TYPE_CHECKING = False  # detection imports this module, and should import little else
if TYPE_CHECKING:
    from torch_hal_mps.accelerator import MPSAccelerator

__all__ = ["MPSAccelerator"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "MPSAccelerator": "torch_hal_mps.accelerator",
    },
)
