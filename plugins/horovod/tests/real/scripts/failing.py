"""``python failing.py``: one process fails while the other waits for it."""

from __future__ import annotations

import torch

from torch_hal import Runtime

with Runtime(accelerator="cpu", strategy="horovod") as runtime:
    runtime.reduce(torch.ones(1))
    if runtime.process_index == 1:
        raise ValueError("enough")
    runtime.barrier()
