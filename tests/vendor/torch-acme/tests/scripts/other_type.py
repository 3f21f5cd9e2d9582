"""Play a type of device that torch knows and this machine lacks, and train on it to the CPU's losses."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import acme_driver
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.training import losses

device_type = sys.argv[1]
device = f"{device_type}:0"
module = acme_driver.simulate(device_type, 1)
assert losses(device) == losses("cpu")
assert losses(device, "AdamW") == losses("cpu", "AdamW")
for dtype in (torch.bfloat16, torch.float16):
    seen = losses(device, autocast=dtype)
    assert seen != losses("cpu")
    # torch brings an autocast for MPS and XPU, with its own policy.
    assert seen == losses("cpu", autocast=dtype) or device_type in ("mps", "xpu")
    assert max(abs(a - b) for a, b in zip(seen, losses("cpu"), strict=True)) < 0.05
state = module.get_rng_state(0)
drawn = torch.rand(5, device=device).tolist()
module.set_rng_state(state, 0)
assert torch.rand(5, device=device).tolist() == drawn
assert getattr(torch, device_type).is_available()
if device_type in ("hpu", "mps", "xpu"):
    assert torch.accelerator.current_accelerator() == torch.device(device_type)
    assert torch.ones(2).pin_memory().is_pinned()
gc.collect()
assert module.memory_allocated(0) == 0
assert module.max_memory_allocated(0) > 0
print("trained")
