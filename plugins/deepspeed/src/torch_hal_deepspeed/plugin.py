"""The backends of this package; importing it imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch_hal.hookspecs import hookimpl
from torch_hal.specs import ClusterEnvironmentSpec, StrategySpec

__all__ = ["core_cluster_environments", "core_strategies"]

_NAMES: dict[str, tuple[str, dict[str, Any]]] = {
    "deepspeed": ("DeepSpeed; ZeRO stage 2 unless its config sets another", {}),
    "deepspeed_stage_1": ("DeepSpeed, ZeRO stage 1: optimizer state sharded", {"stage": 1}),
    "deepspeed_stage_2": ("DeepSpeed, ZeRO stage 2: gradients sharded too", {"stage": 2}),
    "deepspeed_stage_3": ("DeepSpeed, ZeRO stage 3: parameters sharded too", {"stage": 3}),
    "deepspeed_stage_1_offload": (
        "DeepSpeed, ZeRO stage 1, the optimizer on the host",
        {"stage": 1, "offload_optimizer": "cpu"},
    ),
    "deepspeed_stage_2_offload": (
        "DeepSpeed, ZeRO stage 2, the optimizer on the host",
        {"stage": 2, "offload_optimizer": "cpu"},
    ),
    "deepspeed_stage_3_offload": (
        "DeepSpeed, ZeRO stage 3, optimizer and parameters on the host",
        {"stage": 3, "offload_optimizer": "cpu", "offload_parameters": "cpu"},
    ),
    "deepspeed_stage_3_offload_nvme": (
        "DeepSpeed, ZeRO stage 3, optimizer and parameters on NVMe drives",
        {"stage": 3, "offload_optimizer": "nvme", "offload_parameters": "nvme"},
    ),
}

_OWN_VARIABLES = ("CROSS_RANK", "CROSS_SIZE", "LOCAL_SIZE")
"""What DeepSpeed's launcher sets in addition to torchrun's variables."""


@hookimpl
def core_strategies() -> Iterator[StrategySpec]:
    """The names of :class:`torch_hal_deepspeed.DeepSpeedStrategy`."""
    for name, (description, options) in _NAMES.items():
        yield StrategySpec(
            name=name,
            target="torch_hal_deepspeed.strategy:DeepSpeedStrategy",
            description=description,
            init_args=options,
        )


@hookimpl
def core_cluster_environments() -> Iterator[ClusterEnvironmentSpec]:
    """Processes started by DeepSpeed's launcher."""
    yield ClusterEnvironmentSpec(
        name="deepspeed",
        target="torch_hal_deepspeed.environment:DeepSpeedEnvironment",
        description="Processes started by DeepSpeed's launcher.",
        priority=60,
        detect="torch_hal_deepspeed.environment:detect",
        rank="RANK",
        size="WORLD_SIZE",
        requires=("LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", *_OWN_VARIABLES),
        variables=("LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", *_OWN_VARIABLES),
    )
