"""The hooks of the package."""

from __future__ import annotations

from core.hookspecs import hookimpl
from core.specs import AcceleratorSpec

__all__ = ["core_accelerators"]


@hookimpl
def core_accelerators() -> list[AcceleratorSpec]:
    """Acme's cards."""
    return [
        AcceleratorSpec(
            name="acme",
            target="torch_hal_acme.accelerator:AcmeAccelerator",
            description="Acme cards (simulated)",
            priority=50,
            detect="torch_hal_acme.detect:count",
        )
    ]
