"""DDP and every form of FSDP in your own loops, one after another in the same processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from problem import MLP, Transformer, bytes_held, evaluate, loss_of, make, own_batch, say, train, whole_state
from torch import nn
from torch_hal_fsdp import FSDPStrategy

from torch_hal import Runtime
from torch_hal.strategies import DDPStrategy

PROCESSES = int(sys.argv[1])
ACCELERATOR = os.environ.get("ACCELERATOR", "cpu")
BUILDS: dict[str, Callable[[], nn.Module]] = {
    "mlp": MLP,
    "transformer": Transformer,
    "tied": partial(Transformer, tied=True),
}
WORKS = {
    "plain": {},
    "norm": {"clip_norm": 0.1},
    "value": {"clip_value": 0.01},
    "accumulated": {"accumulate": 2, "clip_norm": 0.1},
}

said: dict[str, Any] = {}


def run(name: str, strategy: Any, models: str, works: str = "plain", precision: str = "32-true") -> None:
    """Train with one strategy; note losses, norms, final loss, memory, and whether the parameters are those of DDP."""
    with Runtime(accelerator=ACCELERATOR, strategy=strategy, devices=PROCESSES, precision=precision) as runtime:
        for model in models.split():
            for work in works.split():
                made = make(runtime, BUILDS[model])
                results: dict[str, Any] = train(runtime, made, **WORKS[work])
                results["evaluated"] = evaluate(runtime, made)
                train(runtime, made, steps=1, first=50)
                results["afterwards"] = evaluate(runtime, made)
                if work == "plain":
                    results["shape"] = sorted(whole_state(made[0]))
                    results["bytes"] = runtime.strategy.all_gather_object(held_with_gradients(runtime, made))
                said[f"{name} {model} {work}"] = results


def held_with_gradients(runtime: Runtime, made: Any) -> int:
    """Bytes in this process while it has gradients."""
    own, model, optimizer = made
    runtime.backward(loss_of(model, *own_batch(runtime, own, 0)))
    held = bytes_held(own, optimizer)
    optimizer.zero_grad()
    return int(held)


ALL = "plain norm value accumulated"
fsdp = FSDPStrategy
if PROCESSES == 2:
    run("ddp", DDPStrategy(), "mlp transformer tied", ALL)
    run("fsdp", "fsdp", "mlp transformer tied", ALL)
    run("offload", "fsdp_cpu_offload", "mlp transformer", "plain accumulated")
    run("hybrid", "fsdp_hybrid", "transformer")
    run("classes", fsdp(wrap_policy=["Linear", nn.Embedding], reshard_after_forward=False), "transformer")
    run("model", fsdp(wrap_policy="model", activation_checkpointing="blocks"), "transformer", "plain accumulated")
    run("size", fsdp(wrap_policy=3000, reshard_after_forward=True), "mlp transformer tied")
    run("function", fsdp(wrap_policy=lambda module: isinstance(module, nn.LayerNorm)), "transformer")
    run("each", fsdp(reduce_each_batch=True), "transformer", "accumulated")
    run("tensor", "fsdp_tensor_parallel", "transformer tied", ALL)
    for precision in ("bf16-mixed", "16-mixed", "bf16-true", "64-true"):
        run(f"ddp {precision}", DDPStrategy(), "transformer", "norm", precision)
        run(f"fsdp {precision}", fsdp(), "transformer", "norm", precision)
        if precision != "16-mixed":
            run(f"tensor {precision}", fsdp(tensor_parallel_size=2), "transformer", "norm", precision)
else:
    run("ddp", DDPStrategy(), "mlp transformer", ALL)
    run("fsdp", "fsdp", "mlp transformer", ALL)
    run("hybrid", fsdp(replicas=2), "mlp transformer", ALL)
    run("tensor", fsdp(tensor_parallel_size=2), "transformer", ALL)
    run("smaller", fsdp(reshard_after_forward=2), "transformer")

with Runtime(accelerator=ACCELERATOR, strategy=DDPStrategy(), devices=PROCESSES) as last:
    last.launch()
    say(last, said)
