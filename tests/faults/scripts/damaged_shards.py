"""Three processes load their checkpoint, each file of which is damaged in turn: ``damaged_shards.py DRAWS``."""

import json
import logging
import os
import random
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from core import Runtime
from core.checkpoints import ShardedCheckpointIO
from core.errors import CheckpointError
from core.strategies import DDPStrategy

OUT = Path(os.environ["OUT"])
DRAWS = int(sys.argv[1])
io = ShardedCheckpointIO()
torch.set_num_threads(1)
runtime = Runtime(accelerator="cpu", strategy=DDPStrategy(checkpoint_io=io), devices=3)
runtime.launch()
warnings.simplefilter("ignore")
logging.disable(logging.WARNING)
mesh = init_device_mesh("cpu", (3,))
whole = torch.arange(14.0).reshape(7, 2)
path = OUT / "c"
io.save_checkpoint({"rows": distribute_tensor(whole, mesh, [Shard(0)]), "bias": torch.ones(3), "step": 7}, path)


def damages(content: bytes) -> Iterator[bytes | None]:
    """What is in the place of the file; ``None`` for no file."""
    chance = random.Random(5)
    for place in (chance.randrange(len(content)) for _ in range(DRAWS)):
        yield content[:place] + bytes([content[place] ^ 1 << chance.randrange(8)]) + content[place + 1 :]
        yield content[:place]
    yield content + b"\0"
    yield None


def load() -> str:
    try:
        loaded = io.load_shards(path, mesh, [Shard(0)])
    except CheckpointError as error:
        return str(error)
    is_equal = torch.equal(loaded["rows"].full_tensor(), whole) and torch.equal(loaded["bias"], torch.ones(3))
    return "equal" if is_equal and loaded["step"] == 7 else "other values"


said: dict[str, list[list[str]]] = {}
longest = 0.0
for file in runtime.strategy.all_gather_object(sorted(path.iterdir()))[0]:
    content = file.read_bytes()
    said[file.name] = []
    runtime.barrier()
    for damaged in damages(content):
        if runtime.is_main_process:
            file.unlink() if damaged is None else file.write_bytes(damaged)
        runtime.barrier()
        begin = time.monotonic()
        said[file.name].append(runtime.strategy.all_gather_object(load()))
        longest = max(longest, time.monotonic() - begin)
        if runtime.is_main_process:
            file.write_bytes(content)
        runtime.barrier()
assert load() == "equal"
if runtime.is_main_process:
    (OUT / "said.json").write_text(json.dumps({"said": said, "longest": longest}))
runtime.barrier()
