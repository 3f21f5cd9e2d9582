"""Two processes write a checkpoint of divided tensors together, read it back, and fail together."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from core import Runtime
from core.checkpoints import ShardedCheckpointIO, is_committed, local_store
from core.errors import CheckpointError
from core.precisions.gradient_clipping import clip_gradients
from core.strategies import DDPStrategy

OUT = Path(os.environ["OUT"])
runtime = Runtime(accelerator="cpu", strategy=DDPStrategy(checkpoint_io=ShardedCheckpointIO()), devices=2)
runtime.launch()
strategy = runtime.strategy
io = strategy.checkpoint_io
assert isinstance(io, ShardedCheckpointIO)
mesh = init_device_mesh("cpu", (2,))
whole = torch.arange(15.0).reshape(5, 3)
rows, copies = distribute_tensor(whole, mesh, [Shard(0)]), distribute_tensor(whole + 1, mesh, [Replicate()])
checkpoint = {
    "model": {"rows": rows, "copies": copies, "plain": torch.ones(2)},
    "parts": [{"rows": rows * 2}, 7],
    "model.rows": rows * 3,
    "own": runtime.process_index,
}
strategy.save_checkpoint(checkpoint, OUT / "saved")
said: dict[str, Any] = {"committed": is_committed(OUT / "saved")}

read = io.load_shards(OUT / "saved", mesh, [Shard(0)])
part = read["model"]["rows"]
assert isinstance(part, DTensor)
said["local rows"] = strategy.all_gather_object(part.to_local().tolist())
said["divided"] = [
    tensor.full_tensor().tolist()
    for tensor in (part, read["model"]["copies"], read["parts"][0]["rows"], read["model.rows"])
]
said["rest"] = [read["model"]["plain"].tolist(), read["parts"][1], read["own"]]
said["whole"] = strategy.load_checkpoint(OUT / "saved")["model"]["rows"].tolist()


def attempt(name: str, function: Any) -> None:
    """What each process is told."""
    text = ""
    try:
        function()
    except CheckpointError as error:
        text = str(error)
    said[name] = strategy.all_gather_object(text)


def fail_in_one(staged: Path) -> None:
    if runtime.process_index == 1:
        raise CheckpointError("no such disk")


def unreadable(tensors: Tensor) -> None:
    strategy.save_checkpoint({"model": tensors, "lambda": print}, OUT / "saved")


with patch.object(local_store, "check_shared", fail_in_one):
    attempt("one cannot write", lambda: strategy.save_checkpoint({"model": rows + 9}, OUT / "saved"))
attempt("unreadable", lambda: unreadable(rows))
attempt("in a tuple", lambda: strategy.save_checkpoint({"model": (rows, rows)}, OUT / "saved"))
attempt("absent", lambda: io.load_shards(OUT / "absent", mesh, [Shard(0)]))
said["kept"] = strategy.load_checkpoint(OUT / "saved")["model"]["rows"].tolist()

parameters = [torch.nn.Parameter(tensor) for tensor in (rows, whole + 1, copies)]
for parameter, gradient in zip(parameters, (rows, whole, copies), strict=True):
    parameter.grad = gradient.clone()
norm = clip_gradients(parameters, 0.5)
assert norm is not None
clipped = [parameter.grad for parameter in parameters]
said["norm"] = [
    float(norm),
    [(g.full_tensor() if isinstance(g, DTensor) else g).tolist() for g in clipped if g is not None],
]

strategy.save_checkpoint({"model": {"rows": rows + 1}}, OUT / "damaged")
if runtime.is_main_process:
    (file,) = (OUT / "damaged").glob("__1_*")
    file.write_bytes(bytes(file.stat().st_size))
runtime.barrier()
attempt("damaged", lambda: io.load_shards(OUT / "damaged", mesh, [Shard(0)]))
if runtime.is_main_process:
    (OUT / "said.json").write_text(json.dumps(said))
