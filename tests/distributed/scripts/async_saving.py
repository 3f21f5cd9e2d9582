"""Trains with saves in the background: ``train IO``, ``fail IO`` in rank 0, ``kill IO`` while the second is written."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from problem import leave, model
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from core import Runtime
from core.checkpoints import AsyncCheckpointIO, ShardedCheckpointIO, TorchCheckpointIO, sharded, torch_io

MODE, IO, ASYNC = sys.argv[1], sys.argv[2], sys.argv[3] == "async"
OUT = Path(os.environ["OUT"])
half_written = threading.Event()
write_shard = torch_io.write_shard


def disturbed(checkpoint: dict[str, Any], file_path: Path, path: Any) -> Any:
    """Fails for ``second``, or stays there when half of it is written."""
    record = write_shard(checkpoint, file_path, path)
    if "second" in str(path) and MODE == "fail":
        raise OSError(28, "No space left on device")
    if "second" in str(path) and MODE == "kill":
        os.truncate(file_path, record.size // 2)
        half_written.set()
        threading.Event().wait(60)
    return record


for module in (torch_io, sharded):
    vars(module)["write_shard"] = disturbed
inner = {"torch": TorchCheckpointIO, "sharded": ShardedCheckpointIO}[IO]()
with Runtime(accelerator="cpu", strategy="ddp", checkpoint_io=AsyncCheckpointIO(inner) if ASYNC else inner) as runtime:
    torch.manual_seed(0)
    net = model()
    net, optimizer = runtime.prepare(net, torch.optim.Adam(net.parameters()))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for step in range(12):
        inputs = torch.full((5, 12), (1.0 + step + runtime.process_index) / 10)
        runtime.backward(nn.functional.mse_loss(net(inputs), torch.ones(5, 1)))
        optimizer.step()
        optimizer.zero_grad()
        if step % 3 == 2:
            # Seven rows on three processes: 3, 3 and 1.
            rows = torch.arange(70.0).reshape(7, 10) + step
            state = {"net": net, "optimizer": optimizer, "step": step}
            if IO == "sharded":
                state["rows"] = distribute_tensor(rows, mesh, [Shard(0)])
            runtime.save(state, OUT / ("first" if step == 2 else "second"))
            if step == 5 and MODE == "kill":
                assert not runtime.is_main_process or half_written.wait(30)
                dist.barrier()
                os.kill(os.getpid(), signal.SIGKILL)
    leave(runtime.unwrap_model(net), runtime.process_index)
