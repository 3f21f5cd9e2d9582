"""A checkpoint of two groups of parameters: ``groups.py save|load PROCESSES STAGE...``."""

from __future__ import annotations

import json
import sys

import torch
from problem import OUT, WHOLE
from torch import nn
from torch_hal_deepspeed import DeepSpeedStrategy

from torch_hal import Runtime

phase, processes, stages = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
saving = phase == "save"
rates = {}
for stage in stages:
    strategy = DeepSpeedStrategy(stage=int(stage), config=WHOLE)
    with Runtime(accelerator="cpu", strategy=strategy, devices=processes) as run:
        own = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
        second = {"params": own[1].parameters(), "lr": 3e-3 if saving else 5e-3}
        made = torch.optim.AdamW(own[0].parameters(), lr=1e-3 if saving else 5e-3)
        made.add_param_group(second)
        model, optimizer = run.prepare(own, made)
        parts = {"model": own, "optimizer": optimizer}
        if saving:
            run.backward(model(torch.ones(4, 8)).square().mean())
            optimizer.step()
            run.save(parts, OUT / f"saved-{stage}")
        else:
            run.load(OUT / f"saved-{stage}", parts)
        rates[stage] = [group["lr"] for group in optimizer.param_groups]
if phase == "load":
    (OUT / "rates.json").write_text(json.dumps(rates))
