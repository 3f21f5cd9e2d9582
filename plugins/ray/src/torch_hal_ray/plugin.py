"""The backends of this package; importing it imports neither torch nor Ray."""

from __future__ import annotations

from torch_hal.hookspecs import hookimpl
from torch_hal.specs import ClusterEnvironmentSpec

__all__ = ["core_cluster_environments"]

_OTHERS = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")


@hookimpl
def core_cluster_environments() -> list[ClusterEnvironmentSpec]:
    """Processes that Ray places on the nodes of its cluster."""
    return [
        ClusterEnvironmentSpec(
            name="ray",
            target="torch_hal_ray.environment:RayEnvironment",
            description="Ray starts the processes on its nodes; or Ray Train has started them",
            priority=60,
            detect="torch_hal_ray.detect:started",
            rank="RANK",
            size="WORLD_SIZE",
            requires=("RAY_RAYLET_PID", *_OTHERS),
            excludes="TORCHELASTIC_RUN_ID",
            variables=("TORCH_HAL_RAY_SINCE", *_OTHERS),
        )
    ]
