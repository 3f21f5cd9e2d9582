"""The hooks of the package."""

from __future__ import annotations

from torch_hal.hookspecs import hookimpl
from torch_hal.specs import AcceleratorSpec

__all__ = ["core_accelerators"]


@hookimpl
def core_accelerators() -> list[AcceleratorSpec]:
    """Ascend NPUs, which ``torch_npu`` adds to torch as device type ``npu``."""
    return [
        AcceleratorSpec(
            name="npu",
            target="torch_hal_npu.accelerator:NPUAccelerator",
            description="Ascend NPUs, through torch_npu",
            priority=88,
            detect="torch_hal_npu.detect:count",
        )
    ]
