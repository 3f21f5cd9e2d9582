"""The hooks of the package."""

from __future__ import annotations

from torch_hal.hookspecs import hookimpl
from torch_hal.specs import AcceleratorSpec

__all__ = ["core_accelerators"]


@hookimpl
def core_accelerators() -> list[AcceleratorSpec]:
    """The GPU of torch's device type ``mps``."""
    return [
        AcceleratorSpec(
            name="mps",
            target="torch_hal_mps.accelerator:MPSAccelerator",
            description="the GPU of Apple silicon, through Metal Performance Shaders",
            aliases=("gpu",),
            priority=80,
            detect="torch_hal_mps.detect:count",
            default_strategy="single_device",
        )
    ]
