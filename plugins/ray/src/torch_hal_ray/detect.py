"""Whether Ray Train started this process, from environment variables alone."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["SINCE", "started"]

SINCE = "TORCH_HAL_RAY_SINCE"
"""Set in processes that RayEnvironment starts: when the run was first started, and whether this is a restart."""

_IN_WORKER = "RAY_RAYLET_PID"
"""Ray sets it in each of its worker processes."""
_RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")


def started(environ: Mapping[str, str]) -> bool:
    """Whether this is a worker of Ray with ranks: one of Ray Train's, or one that RayEnvironment has started.

    A torchrun that runs inside of a Ray task has set the ranks itself: then it decides.
    """
    if "TORCHELASTIC_RUN_ID" in environ or _IN_WORKER not in environ:
        return False
    return all(name in environ for name in _RANKS)
