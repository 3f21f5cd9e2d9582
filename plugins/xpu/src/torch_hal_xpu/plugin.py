"""The hooks of the package."""

from __future__ import annotations

from torch_hal.hookspecs import hookimpl
from torch_hal.specs import AcceleratorSpec

__all__ = ["core_accelerators"]


@hookimpl
def core_accelerators() -> list[AcceleratorSpec]:
    """Intel GPUs, torch's device type ``xpu``."""
    return [
        AcceleratorSpec(
            name="xpu",
            target="torch_hal_xpu.accelerator:XPUAccelerator",
            description="Intel GPUs, through torch's XPU backend",
            aliases=("gpu",),
            priority=85,
            detect="torch_hal_xpu.detect:count",
        )
    ]
