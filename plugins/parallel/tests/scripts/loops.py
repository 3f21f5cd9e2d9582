"""One process, or meshes of some processes, in own loops, one after another in the same processes."""

from __future__ import annotations

import sys
from typing import Any

from problem import evaluate, make, say, train
from torch_hal_parallel import ModelParallelStrategy

from torch_hal import Runtime

PROCESSES = int(sys.argv[1])
WORKS: dict[str, dict[str, Any]] = {
    "plain": {},
    "norm": {"clip": 0.1},
    "value": {"clip_value": 0.01},
    "accumulated": {"accumulate": 2, "clip": 0.1},
}
MESHES: dict[int, dict[str, dict[str, Any]]] = {
    1: {"one": {}},
    2: {
        "tensor": {"tensor": 2},
        "context": {"context": 2},
        "data": {"data": 2},
        **{
            name: {"pipeline": 2, "schedule": name, "microbatches": 4}
            for name in ("GPipe", "1F1B", "LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble")
        },
        "DualPipeV": {"pipeline": 2, "schedule": "DualPipeV", "microbatches": 8},
    },
    3: {
        "pipeline": {"pipeline": 3, "pipeline_split": [2, 3, 2], "microbatches": 4},
        "context": {"context": 3},
        "tensor": {"tensor": 3},
    },
    4: {
        "data pipeline": {"data": 2, "pipeline": 2, "microbatches": 2},
        "data tensor": {"data": 2, "tensor": 2},
        "tensor pipeline": {"tensor": 2, "pipeline": 2, "schedule": "Interleaved1F1B"},
        "context tensor": {"context": 2, "tensor": 2},
        "data context": {"data": 2, "context": 2},
    },
    8: {"data tensor pipeline": {"data": 2, "tensor": 2, "pipeline": 2}},
}
only = sys.argv[2:]
said: dict[str, Any] = {}
for mesh, options in MESHES[PROCESSES].items():
    if only and mesh not in only:
        continue
    strategy: Any = ModelParallelStrategy(**options) if PROCESSES > 1 else "single_device"
    works = WORKS if PROCESSES in (1, 4) or mesh in ("1F1B", "tensor") else {"norm": WORKS["norm"]}
    for work, arguments in works.items():
        with Runtime(accelerator="cpu", strategy=strategy, devices=PROCESSES) as runtime:
            model, optimizer = runtime.prepare(*make())
            results: dict[str, Any] = train(runtime, model, optimizer, **arguments)
            results["evaluated"] = evaluate(runtime, model)
            held = sum(p.numel() for p in model.parameters() if not p.is_meta)
            results["held"] = runtime.strategy.all_gather_object(held)
            said[f"{mesh} {work}"] = results
            say(runtime, said)
