"""Devices from outside torch: DDP and FSDP on two simulated cards, and how much of one a division takes."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from problem import Transformer, evaluate, make, say, train
from torch_hal_fsdp import FSDPStrategy

from torch_hal import Runtime
from torch_hal.strategies import DDPStrategy

said: dict[str, Any] = {}
FORMS: dict[str, Any] = {
    "ddp": DDPStrategy(),
    "fsdp": "fsdp",
    "offload": FSDPStrategy(cpu_offload=True),
    "hybrid": FSDPStrategy(replicas=2),
    "tensor": FSDPStrategy(tensor_parallel_size=2),
}

for name, strategy in FORMS.items():
    with Runtime(accelerator="acme", strategy=strategy, devices=2) as runtime:
        made = make(runtime, Transformer)
        devices = [str(next(made[0].parameters()).device), str(runtime.device)]
        said[name] = train(runtime, made, accumulate=2, clip_norm=0.1)
        said[name]["evaluated"] = evaluate(runtime, made)
        said[name]["devices"] = devices
        said[name]["backends"] = [runtime.plan.process_group_backend, str(dist.get_backend_config())]
        if name == "fsdp":
            runtime.save({"model": made[1], "optimizer": made[2]}, "saved")
            train(runtime, made, steps=1)
            runtime.load("saved", {"model": made[1], "optimizer": made[2]})
            said["reloaded"] = evaluate(runtime, made)

for name in ("at once", "on meta"):
    with Runtime(accelerator="acme", strategy=FSDPStrategy(), devices=2) as runtime:
        runtime.launch()
        torch.accelerator.empty_cache()
        before = torch.accelerator.memory_allocated()
        torch.accelerator.reset_peak_memory_stats()
        made = make(runtime, partial(Transformer, width=128, depth=4), meta=name == "on meta")
        taken = torch.accelerator.max_memory_allocated() - before
        whole = sum(parameter.numel() * parameter.element_size() for parameter in made[0].parameters())
        said[f"memory {name}"] = taken / whole
        del made

with Runtime(accelerator="acme", strategy="fsdp", devices=2) as last:
    last.launch()
    say(last, said)
