"""The hooks of the package."""

from __future__ import annotations

from torch_hal.hookspecs import hookimpl
from torch_hal.specs import AcceleratorSpec, CheckpointIOSpec, ClusterEnvironmentSpec, StrategySpec

_ONLY_XLA = ("xla",)


@hookimpl
def core_accelerators() -> list[AcceleratorSpec]:
    """The devices of torch_xla."""
    return [
        AcceleratorSpec(
            name="xla",
            target="torch_hal_xla.accelerator:XLAAccelerator",
            description="TPUs and other devices of torch_xla",
            aliases=("tpu",),
            priority=50,
            detect="torch_hal_xla.detect:count",
            default_strategy="single_xla",
            default_parallel_strategy="xla",
        )
    ]


@hookimpl
def core_strategies() -> list[StrategySpec]:
    """Strategies with one device, with one process per device, and with one process for all devices."""
    return [
        StrategySpec(
            name="single_xla",
            target="torch_hal_xla.strategies.single:SingleXLAStrategy",
            description="one process on one XLA device",
            accelerators=_ONLY_XLA,
        ),
        StrategySpec(
            name="xla",
            target="torch_hal_xla.strategies.parallel:XLAStrategy",
            description="one process with a replica per device of the machine, started by torch_xla.launch",
            accelerators=_ONLY_XLA,
        ),
        StrategySpec(
            name="xla_debug",
            target="torch_hal_xla.strategies.parallel:XLAStrategy",
            description="xla with torch_xla's analysis of each graph; waits for each step and checks it",
            accelerators=_ONLY_XLA,
            init_args={"debug": True},
        ),
        StrategySpec(
            name="xla_spmd",
            target="torch_hal_xla.strategies.spmd:XLASPMDStrategy",
            description="one process that splits each batch over all devices of the machine",
            accelerators=_ONLY_XLA,
        ),
    ]


@hookimpl
def core_checkpoint_ios() -> list[CheckpointIOSpec]:
    """torch-hal's own format, all tensors on the host."""
    return [
        CheckpointIOSpec(
            name="xla",
            target="torch_hal_xla.checkpoint_io:XLACheckpointIO",
            description="a directory of files and a manifest, committed by one rename; all tensors on the host",
        )
    ]


@hookimpl
def core_cluster_environments() -> list[ClusterEnvironmentSpec]:
    """Processes started by torch_xla.launch."""
    return [
        ClusterEnvironmentSpec(
            name="xla",
            target="torch_hal_xla.environment:XLAEnvironment",
            description="processes started by torch_xla.launch",
            priority=60,
            detect="torch_hal_xla.detect:is_launched",
            rank="PJRT_LOCAL_PROCESS_RANK",  # of this machine: before a run, the ranks are the runtime's to tell
            variables="PJRT_LOCAL_PROCESS_COUNT",
        )
    ]
