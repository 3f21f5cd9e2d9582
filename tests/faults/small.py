"""Small checkpoints of each format, and whether what is loaded is what was saved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from python_processes import run_python

from core.checkpoints import (
    AsyncCheckpointIO,
    CheckpointIO,
    SafetensorsCheckpointIO,
    ShardedCheckpointIO,
    TorchCheckpointIO,
)

IOS: dict[str, Callable[[], CheckpointIO]] = {
    "torch": TorchCheckpointIO,
    "sharded": ShardedCheckpointIO,
    "async": AsyncCheckpointIO,
    "safetensors": SafetensorsCheckpointIO,
}


_SAVE_SHARDED = """
import os
import sys
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from core.checkpoints import ShardedCheckpointIO

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
rows = distribute_tensor(torch.arange(6.0).reshape(3, 2), init_device_mesh("cpu", (1,)), [Shard(0)])
state = {"rows": rows, "step": 7, "text": "ä", "core": {"world_size": 1}}
ShardedCheckpointIO().save_checkpoint(state, sys.argv[1])
os._exit(0)  # an interpreter that ends may abort where gloo's thread frees a collective's tensors
"""
"""In a process of its own: torch keeps the mesh of a sharded tensor, and with it the process group, until the thread
ends, and a process that is forked meanwhile would wait for the group's threads, which it does not have."""


def save_small(name: str, path: Path) -> dict[str, Any]:
    """Save a small checkpoint with the IO ``name``; returns what loading must return."""
    state: dict[str, Any] = {"rows": torch.arange(6.0).reshape(3, 2), "step": 7, "text": "ä", "core": {"world_size": 1}}
    if name == "sharded":
        run_python("-c", _SAVE_SHARDED, path, cwd=path.parent, warnings="ignore")
        return state
    io = IOS[name]()
    io.save_checkpoint(state, path)
    io.teardown()
    return state


def is_same(one: Any, other: Any) -> bool:
    """Equal in type and value, bit for bit."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return isinstance(other, dict) and [*one] == [*other] and all(is_same(one[key], other[key]) for key in one)
    return bool(type(one) is type(other) and one == other)
