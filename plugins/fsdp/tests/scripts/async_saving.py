"""Loops that save while they train: ``sharded`` and ``async`` by name; then what both have saved is read."""

from __future__ import annotations

import sys
from typing import Any

import torch
from problem import OUT, Transformer, make, say, train

import torch_hal
from torch_hal.checkpoints import AsyncCheckpointIO, ShardedCheckpointIO

PROCESSES = int(sys.argv[1])
said: dict[str, Any] = {}


def whole(path: Any) -> Any:
    return {name: value for name, value in ShardedCheckpointIO().load_checkpoint(path).items() if name != "core"}


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


for io in ("sharded", "async"):
    with torch_hal.Runtime(accelerator="cpu", strategy="fsdp", devices=PROCESSES, checkpoint_io=io) as runtime:
        made = make(runtime, Transformer)
        losses = []
        for turn in range(4):
            losses += train(runtime, made, steps=2, first=2 * turn)["losses"]
            runtime.save({"model": made[1], "optimizer": made[2], "turn": turn}, OUT / f"{io}-{turn}")
        own = runtime.strategy.checkpoint_io
        kind = type(own.inner if isinstance(own, AsyncCheckpointIO) else own).__name__
        said[io] = {"losses": losses, "kind": kind}
    if runtime.is_main_process:
        said[io]["saved"] = all(same(whole(OUT / f"{io}-{turn}"), whole(OUT / f"sharded-{turn}")) for turn in range(4))
with torch_hal.Runtime(accelerator="cpu", strategy="fsdp", devices=PROCESSES, checkpoint_io="async") as runtime:
    made = make(runtime, Transformer)
    rest = runtime.load(OUT / "async-1", {"model": made[1], "optimizer": made[2]})
    said["resumed"] = {"losses": train(runtime, made, steps=4, first=4)["losses"], "rest": rest}
say(runtime, said)
