"""A step under a launcher; says which environment it found and what the processes make together."""

from __future__ import annotations

import sys

import torch
from problem import make, say, train

from torch_hal import Runtime

with Runtime(accelerator="cpu", strategy=sys.argv[1], devices="auto") as runtime:
    made = make(runtime)
    losses = train(runtime, made, steps=2)
    ranks = runtime.gather(torch.tensor(runtime.process_index)).tolist()
    say(runtime, {"environment": runtime.plan.cluster_environment.name, "ranks": ranks, "losses": losses})
