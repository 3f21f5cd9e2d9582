"""The backends of this package; importing it imports neither torch nor Horovod."""

from __future__ import annotations

from torch_hal.hookspecs import hookimpl
from torch_hal.specs import ClusterEnvironmentSpec, StrategySpec

__all__ = ["core_cluster_environments", "core_strategies"]


@hookimpl
def core_strategies() -> list[StrategySpec]:
    """Strategy ``horovod``."""
    return [
        StrategySpec(
            name="horovod",
            target="torch_hal_horovod.strategy:HorovodStrategy",
            description="a replica in each process that horovodrun started; Horovod averages the gradients",
        )
    ]


@hookimpl
def core_cluster_environments() -> list[ClusterEnvironmentSpec]:
    """Processes of horovodrun, horovod.run, its elastic driver, or mpirun."""
    return [
        ClusterEnvironmentSpec(
            name="horovod",
            target="torch_hal_horovod.environment:HorovodEnvironment",
            description="processes started by horovodrun, horovod.run, or mpirun with HOROVOD_CONTROLLER=mpi",
            priority=60,
            detect="torch_hal_horovod.detect:started",
            rank="HOROVOD_RANK",
            size="HOROVOD_SIZE",
            requires=("HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
            variables=("HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE", "HOROVOD_CROSS_RANK", "HOROVOD_CROSS_SIZE"),
        )
    ]
