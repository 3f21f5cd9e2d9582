"""The hooks of the package."""

from __future__ import annotations

from torch_hal.hookspecs import hookimpl
from torch_hal.specs import AcceleratorSpec, StrategySpec

__all__ = ["core_accelerators", "core_strategies"]


@hookimpl
def core_accelerators() -> list[AcceleratorSpec]:
    """Gaudi cards, torch's device type ``hpu``."""
    return [
        AcceleratorSpec(
            name="hpu",
            target="torch_hal_hpu.accelerator:HPUAccelerator",
            description="Intel Gaudi cards, through habana_frameworks",
            priority=90,
            detect="torch_hal_hpu.detect:count",
            default_strategy="hpu_single",
            default_parallel_strategy="hpu_parallel",
        )
    ]


@hookimpl
def core_strategies() -> list[StrategySpec]:
    """Strategies that mark the end of steps for lazy mode."""
    return [
        StrategySpec(
            name="hpu_single",
            target="torch_hal_hpu.strategies:SingleHPUStrategy",
            description="one process on one Gaudi card",
            accelerators=("hpu",),
            max_processes=1,
        ),
        StrategySpec(
            name="hpu_parallel",
            target="torch_hal_hpu.strategies:HPUParallelStrategy",
            description="DistributedDataParallel over HCCL, one process per Gaudi card",
            accelerators=("hpu",),
        ),
    ]
