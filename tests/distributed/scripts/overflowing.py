"""Two processes under 16-mixed: a loss is infinite in both, and with LocalSGD one in process 1 only.

Each process leaves its learning rates, whether it skipped its steps, and its loss scale, before and after resuming.
Argument: the strategy.
"""

import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR

from core import LocalSGD, Runtime

OUT = Path(os.environ["OUT"])
INFINITE: dict[int, tuple[int, ...]] = {0: (1, 3), 1: (1, 3)}
ALONE: dict[int, tuple[int, ...]] = {0: (1, 3), 1: (1, 2, 3)}


def train(steps: range, infinite: dict[int, tuple[int, ...]], is_local: bool, resume: bool = False) -> dict[str, Any]:
    runtime = Runtime(accelerator="cpu", devices=2, strategy=sys.argv[1], precision="16-mixed")
    torch.manual_seed(1)
    module = nn.Linear(4, 1)
    own = torch.optim.SGD(module.parameters(), lr=1e-3)
    model, optimizer, scheduler = runtime.prepare(module, own, StepLR(own, 1, 0.5))
    if resume:
        runtime.load_state(OUT / "state")
    rates, skipped = [], []
    with LocalSGD(runtime, model, local_sgd_steps=2) if is_local else nullcontext() as local:
        for step in steps:
            factor = float("inf") if step in infinite[runtime.process_index] else 1e-4
            runtime.backward(model(torch.ones(2, 4)).square().mean() * factor)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            rates.append(own.param_groups[0]["lr"])
            skipped.append(runtime.optimizer_step_was_skipped)
            if local is not None:
                local.step()
    if not resume:
        runtime.save_state(OUT / "state")
    scale = runtime.strategy.precision.state_dict()["scale"]
    runtime.end_training()
    return {"rates": rates, "skipped": skipped, "scale": scale}


said: dict[str, Any] = {"together": train(range(5), INFINITE, is_local=False)}
if sys.argv[1] == "ddp":
    said["local"] = train(range(4), ALONE, is_local=True)
    said["resumed"] = train(range(4, 5), ALONE, is_local=True, resume=True)
(OUT / f"said{os.environ['RANK']}.json").write_text(json.dumps(said))
