"""Meshes of some processes, one after another: each saves a checkpoint, or goes on from each that is there.

Arguments: ``save`` or ``load``, the number of processes, and names of meshes; without names, all of that number.
"""

from __future__ import annotations

import sys
from typing import Any

from problem import OUT, make, say, train
from torch import nn
from torch_hal_parallel import ModelParallelStrategy

from torch_hal import Runtime

WORK, PROCESSES = sys.argv[1], int(sys.argv[2])
ITEMS, SAVED, STEPS = 12, 2, 4
"""Twelve texts are divided by every mesh; steps before the checkpoint, and in all."""
MESHES: dict[int, list[dict[str, Any]]] = {
    1: [{}],
    2: [{"data": 2}, {"tensor": 2}, {"pipeline": 2}, {"context": 2}],
    3: [{"data": 3}, {"tensor": 3}, {"pipeline": 3}, {"context": 3}],
    4: [
        *({name: 4} for name in ("data", "tensor", "pipeline", "context")),
        {"data": 2, "tensor": 2},
        {"data": 2, "pipeline": 2},
        {"data": 2, "context": 2},
        {"tensor": 2, "pipeline": 2},
        {"context": 2, "tensor": 2},
        {"pipeline": 2, "tensor": 2, "schedule": "Interleaved1F1B"},
    ],
}


def name_of(mesh: dict[str, Any]) -> str:
    return " ".join(f"{name}={size}" for name, size in mesh.items()) or "one"


def losses_of(runtime: Runtime, model: nn.Module, optimizer: Any, first: int, last: int) -> list[float]:
    losses: list[float] = train(runtime, model, optimizer, first, last - first, items=ITEMS)["losses"]
    return losses


said: dict[str, Any] = {}
saved = sorted(OUT.glob("saved *")) if WORK == "load" else [OUT / "none"]
for mesh in MESHES[PROCESSES]:
    if sys.argv[3:] and name_of(mesh) not in sys.argv[3:]:
        continue
    for path in saved:
        strategy: Any = ModelParallelStrategy(**mesh) if mesh else "single_device"
        with Runtime(accelerator="cpu", devices=PROCESSES, strategy=strategy) as runtime:
            model, optimizer = runtime.prepare(*make())
            if WORK == "save":
                losses = losses_of(runtime, model, optimizer, 0, SAVED)
                runtime.save({"model": model, "optimizer": optimizer}, OUT / f"saved {name_of(mesh)}")
                losses += losses_of(runtime, model, optimizer, SAVED, STEPS)
                said[name_of(mesh)] = losses
            else:
                runtime.load(path, {"model": model, "optimizer": optimizer})
                said[f"{name_of(mesh)} after {path.name}"] = losses_of(runtime, model, optimizer, SAVED, STEPS)
            say(runtime, said)
