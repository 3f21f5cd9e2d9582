from __future__ import annotations

from core.hookspecs import hookimpl
from core.specs import AcceleratorSpec


@hookimpl
def core_accelerators() -> list[AcceleratorSpec]:
    return [
        AcceleratorSpec(
            name="simx",
            target="torch_hal_simx.accelerator:SimxAccelerator",
            description="simulated cards",
            aliases=("sim",),
            detect="torch_hal_simx.detect:count",
        )
    ]
