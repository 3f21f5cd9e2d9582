"""The GPU of Apple silicon in torch-hal. Importing this package imports no torch."""

from __future__ import annotations

TYPE_CHECKING = False  # detection imports this module, and should import nothing else
if TYPE_CHECKING:
    from typing import Any

    from torch_hal_mps.accelerator import MPSAccelerator

__all__ = ["MPSAccelerator"]


def __getattr__(name: str) -> Any:
    if name != "MPSAccelerator":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from torch_hal_mps.accelerator import MPSAccelerator

    return MPSAccelerator
