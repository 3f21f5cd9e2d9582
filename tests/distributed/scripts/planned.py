"""Runs each strategy named on the command line on two processes, and writes what was planned and what was live."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from core import Runtime


def train(runtime: Runtime) -> list[dict[str, Any]]:
    """Three steps; returns the facts of every process."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    prepared, optimizer = runtime.prepare(model, optimizer)
    for _ in range(3):
        runtime.backward(prepared(torch.ones(2, 4) * (1 + runtime.process_index)).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    after = [parameter.detach() for parameter in runtime.unwrap_model(prepared).parameters()]
    is_joined = dist.is_initialized()
    return runtime.strategy.all_gather_object(
        {
            "rank": [dist.get_rank(), dist.get_world_size()] if is_joined else [0, 1],
            "planned_rank": [runtime.process_index, runtime.plan.world_size],
            "backends": str(dist.get_backend_config()) if is_joined else None,
            "planned_backend": runtime.plan.process_group_backend,
            "process": type(multiprocessing.current_process()).__name__,
            "launcher": runtime.plan.launcher,
            "is_started": "CORE_LAUNCHED_PLAN" in os.environ,
            "plan": str(runtime.plan),
            "plan_characters": len(os.environ.get("CORE_LAUNCHED_PLAN", "")),
            "weights": [parameter.flatten().tolist() for parameter in after],
            "has_trained": not all(torch.equal(*pair) for pair in zip(before, after, strict=True)),
        }
    )


if __name__ == "__main__":
    accelerator, *names = sys.argv[1:]
    facts = {}
    for name in names:
        count = 1 if name == "single_device" else 2
        runtime = Runtime(accelerator=accelerator, strategy=name, devices=count)
        facts[name] = runtime.launch(train)
        is_first = runtime.plan.runs_function or runtime.is_main_process
        runtime.teardown()
    if is_first:
        Path(os.environ["OUT"], "planned.json").write_text(json.dumps(facts))
