"""Saves or loads a sharded checkpoint in several processes: ``save|load NUMBER_OF_PROCESSES PATH_OR_URL``.

Loading writes each process's rows, by rank, to ``said.json``.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from core.checkpoints import AsyncCheckpointIO, CheckpointIO, ShardedCheckpointIO
from core.errors import CoreError


def main(action: str, size: int, path: str, meeting: str, rank: int) -> None:
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size)
    mesh = init_device_mesh("cpu", (size,))
    if action.startswith("save"):
        inner = ShardedCheckpointIO()
        io: CheckpointIO = AsyncCheckpointIO(inner) if action == "save-async" else inner
        rows = distribute_tensor(torch.arange(140.0).reshape(7, 20), mesh, [Shard(0)])
        try:
            io.save_checkpoint({"rows": rows, "step": 5}, path)
            io.teardown()
        except CoreError as error:
            sys.stderr.write(f"rank {rank}: {error}\n")
            raise
    else:
        loaded = ShardedCheckpointIO().load_shards(path, mesh, [Shard(0)])
        own = loaded["rows"].to_local().tolist()
        gathered: list[object] = [None] * size
        dist.all_gather_object(gathered, own)
        if rank == 0:
            Path("said.json").write_text(json.dumps({"rows": gathered, "step": loaded["step"]}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.path[:0] = os.environ.get("HELPERS", "").split(os.pathsep)
    import object_store  # noqa: F401

    action, size, path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    with tempfile.TemporaryDirectory() as folder:
        children = {}
        for rank in range(size):
            if (child := os.fork()) == 0:
                code = 1
                try:
                    main(action, size, path, f"{folder}/meeting", rank)
                    code = 0
                finally:
                    sys.stderr.flush()
                    os._exit(code)
            children[child] = rank
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    sys.exit(max(map(abs, codes)))
