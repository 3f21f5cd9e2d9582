"""Small checkpoints of each format, and whether what is loaded is what was saved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from core.checkpoints import AsyncCheckpointIO, CheckpointIO, ShardedCheckpointIO, TorchCheckpointIO

IOS: dict[str, Callable[[], CheckpointIO]] = {
    "torch": TorchCheckpointIO,
    "sharded": ShardedCheckpointIO,
    "async": AsyncCheckpointIO,
}


@contextmanager
def one_process() -> Iterator[None]:
    """A process group of this process alone, in which tensors can be sharded."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def save_small(name: str, path: Path) -> dict[str, Any]:
    """Save a small checkpoint with the IO ``name``; returns what loading must return."""
    state: dict[str, Any] = {"rows": torch.arange(6.0).reshape(3, 2), "step": 7, "text": "ä", "core": {"world_size": 1}}
    if name != "sharded":
        io = IOS[name]()
        io.save_checkpoint(state, path)
        io.teardown()
        return state
    with one_process():
        rows = distribute_tensor(state["rows"], init_device_mesh("cpu", (1,)), [Shard(0)])
        ShardedCheckpointIO().save_checkpoint({**state, "rows": rows}, path)
    return state


def is_same(one: Any, other: Any) -> bool:
    """Equal in type and value, bit for bit."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return isinstance(other, dict) and [*one] == [*other] and all(is_same(one[key], other[key]) for key in one)
    return bool(type(one) is type(other) and one == other)
