"""The hooks of the package."""

from __future__ import annotations

from torch_hal.hookspecs import hookimpl
from torch_hal.specs import AcceleratorSpec, StrategySpec

__all__ = ["core_accelerators", "core_strategies"]


@hookimpl
def core_accelerators() -> list[AcceleratorSpec]:
    """Graphcore's IPUs."""
    return [
        AcceleratorSpec(
            name="ipu",
            target="torch_hal_ipu.accelerator:IPUAccelerator",
            description="Graphcore IPUs, through poptorch",
            priority=50,
            detect="torch_hal_ipu.detect:count",
            default_strategy="ipu",
            default_parallel_strategy="ipu",
        )
    ]


@hookimpl
def core_strategies() -> list[StrategySpec]:
    """Whole steps compiled by poptorch."""
    return [
        StrategySpec(
            name="ipu",
            target="torch_hal_ipu.strategy:IPUStrategy",
            description="whole steps compiled by poptorch, replicated over the machine's IPUs",
            accelerators=("ipu",),
            max_processes=1,
        )
    ]
