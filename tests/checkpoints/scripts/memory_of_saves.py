"""Saves with one CheckpointIO in several processes: ``IO NUMBER_OF_PROCESSES MEGABYTES PATH``.

Prints, for the first and the second save, the memory that the process with the most took in addition to what it had, as
a multiple of the largest file that was written.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from core.checkpoints import (
    AsyncCheckpointIO,
    CheckpointIO,
    SafetensorsCheckpointIO,
    ShardedCheckpointIO,
    TorchCheckpointIO,
    read_manifest,
)

IOS: dict[str, Callable[[], CheckpointIO]] = {
    "torch": TorchCheckpointIO,
    "sharded": ShardedCheckpointIO,
    "safetensors": SafetensorsCheckpointIO,
    "async": AsyncCheckpointIO,
    "async-sharded": lambda: AsyncCheckpointIO(ShardedCheckpointIO()),
    "async-safetensors": lambda: AsyncCheckpointIO(SafetensorsCheckpointIO()),
}
TENSORS, COLUMNS = 4, 100


def kilobytes(key: str) -> int:
    """VmRSS, what is resident, or VmHWM, the most that was since the last reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{key}:")).split()[1])


def peak_of(function: Callable[[], object]) -> int:
    """The bytes that ``function`` takes at most in addition to what the process has."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = kilobytes("VmRSS")
    function()
    return (kilobytes("VmHWM") - before) * 1024


def state_of(name: str, megabytes: float) -> dict[str, Any]:
    """A module's and an optimizer's state of this size, in this process."""
    rows = int(megabytes * 1e6 / 4 / TENSORS / COLUMNS)
    tensors: dict[str, Any] = {f"layer{index}.weight": torch.rand(rows, COLUMNS) for index in range(TENSORS)}
    if name.endswith("sharded"):
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        tensors = {key: DTensor.from_local(part, mesh, [Shard(0)]) for key, part in tensors.items()}
    return {"state_dict": tensors, "epoch": 3}


def main(name: str, size: int, megabytes: float, path: str, meeting: str, rank: int) -> None:
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size)
    io = IOS[name]()
    state, small = state_of(name, megabytes), state_of(name, 0.01)
    writes = io.is_collective or rank == 0
    peaks = []
    for content in (small, state, state):  # the first is for what is imported and started once

        def save(content: dict[str, Any] = content) -> None:
            if writes:
                io.save_checkpoint(content, path)
                io.wait()

        peaks.append(peak_of(save))
        dist.barrier()
    gathered: list[Any] = [None] * size
    dist.all_gather_object(gathered, peaks)
    if rank == 0:
        largest = max(record.size for record in read_manifest(path).files.values())
        print(json.dumps([max(own[number] for own in gathered) / largest for number in (1, 2)]))
    io.teardown()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    name, size, megabytes, path = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(size):
            if (child := os.fork()) == 0:
                code = 1
                try:
                    main(name, size, megabytes, path, f"{folder}/meeting", rank)
                    code = 0
                finally:
                    sys.stdout.flush()
                    os._exit(code)
            children.append(child)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    sys.exit(max(map(abs, codes)))
