"""The hooks of the package."""

from __future__ import annotations

from torch_hal.hookspecs import hookimpl
from torch_hal.specs import AcceleratorSpec, StrategySpec

__all__ = ["core_accelerators", "core_strategies"]


@hookimpl
def core_accelerators() -> list[AcceleratorSpec]:
    """GPUs of torch's device type ``cuda``."""
    return [
        AcceleratorSpec(
            name="cuda",
            target="torch_hal_cuda.accelerator:CUDAAccelerator",
            description="NVIDIA GPUs through CUDA; AMD GPUs where torch is built for ROCm",
            aliases=("gpu",),
            priority=100,
            detect="torch_hal_cuda.detect:count",
            default_strategy="single_device",
            default_parallel_strategy="ddp",
        )
    ]


@hookimpl
def core_strategies() -> list[StrategySpec]:
    """Strategies with one process for all devices of a machine."""
    return [
        StrategySpec(
            name="dp",
            target="torch_hal_cuda.strategies.dp:DataParallelStrategy",
            description="one process splits each batch over its devices (discouraged: 'ddp' is faster)",
        ),
        StrategySpec(
            name="ddp2",
            target="torch_hal_cuda.strategies.ddp2:DDP2Strategy",
            description="dp inside a machine, DDP across machines (discouraged: 'ddp' is faster)",
        ),
    ]
