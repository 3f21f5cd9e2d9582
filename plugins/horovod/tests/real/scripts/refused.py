"""``python refused.py FILE``: what two processes of Horovod's are refused, each by name."""

from __future__ import annotations

import sys
from typing import Any

import torch
from problem import Classifier, loader
from torch_hal_horovod import HorovodStrategy

from torch_hal import Runtime, Trainer
from torch_hal.errors import CoreError

said: dict[str, str] = {}


def refused(name: str, work: Any) -> None:
    """Note the error's message."""
    try:
        work()
    except CoreError as error:
        said[name] = str(error)


def accumulating(**options: Any) -> None:
    """Accumulation said in two ways that differ."""
    quiet: dict[str, Any] = {
        "enable_progress_bar": False,
        "enable_checkpointing": False,
        "logger": False,
        "max_epochs": 1,
    }
    strategy = HorovodStrategy(backward_passes_per_step=3)
    trainer = Trainer(accelerator="cpu", strategy=strategy, accumulate_grad_batches=2, **quiet)
    trainer.fit(Classifier(), loader())


refused("adasum", lambda: Runtime(accelerator="cpu", strategy=HorovodStrategy(op="adasum")))
refused("bf16-true", lambda: Runtime(accelerator="cpu", strategy="horovod", precision="bf16-true"))
refused("devices", lambda: Runtime(accelerator="cpu", strategy="horovod", devices=3))
refused("ddp", lambda: Runtime(accelerator="cpu", strategy="ddp").launch())
if __name__ == "__main__":
    with Runtime(accelerator="cpu", strategy="horovod") as runtime:
        runtime.launch()
        rank = runtime.process_index
        runtime.barrier()
    refused("accumulating", accumulating)
    if rank == 0:
        torch.save(said, sys.argv[1])
