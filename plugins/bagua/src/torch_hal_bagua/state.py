"""The state of each process, for an exact resume if weights differ between processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from torch_hal.utilities.nested import map_tensors
from torch_hal_bagua.algorithms.base import Replica

__all__ = ["STATE_KEY", "gather_states", "process_state", "restore_replica"]

STATE_KEY = "bagua"
"""The key in an optimizer's state."""


def process_state(optimizer_state: Mapping[str, Any] | None, replicas: Sequence[Replica]) -> dict[str, Any]:
    """This process's optimizer state, its modules' states and the algorithm's state of each module."""
    return {"optimizer": optimizer_state, "replicas": [_replica_state(replica) for replica in replicas]}


def _replica_state(replica: Replica) -> dict[str, Any]:
    with replica.hold():
        module = map_tensors(torch.clone, dict(replica.module.state_dict()))
        return {"module": module, "algorithm": replica.state_dict()}


def gather_states(own: dict[str, Any]) -> list[Any]:
    """In rank 0, the states of all processes by rank, with tensors on the CPU; in other processes an empty list."""
    is_rank_0 = dist.get_rank() == 0
    gathered: list[Any] = [None] * dist.get_world_size()
    on_host = map_tensors(lambda tensor: tensor.detach().cpu(), own)
    dist.gather_object(on_host, gathered if is_rank_0 else None, dst=0)
    return gathered if is_rank_0 else []


def restore_replica(replica: Replica, state: Mapping[str, Any]) -> None:
    """Load the state of one replica from the result of :func:`process_state`."""
    with replica.hold():
        replica.module.load_state_dict(state["module"])
        replica.load_state_dict(state["algorithm"])
