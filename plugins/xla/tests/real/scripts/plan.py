"""Which accelerator is chosen here, and what a backward pass on the CPU does to the choice."""

from __future__ import annotations

import json
import sys

import torch

from torch_hal import Runtime
from torch_hal.errors import CoreError

told = {"error": ""}
accelerator, *arguments = sys.argv[1:]
if "backward first" in arguments:
    torch.ones(1, requires_grad=True).sum().backward()  # type: ignore[no-untyped-call]
try:
    runtime = Runtime(accelerator=accelerator)
    told |= {"accelerator": runtime.plan.accelerator.name, "strategy": runtime.plan.strategy.name}
    runtime.launch()
except CoreError as error:
    told["error"] = str(error)
print(json.dumps(told))
