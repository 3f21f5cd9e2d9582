"""Trains in all the ways that the tests compare, one after another in the same processes.

``python loops.py STRATEGY FILE``: ``ddp`` starts two processes by itself, for ``horovod`` horovodrun does.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import torch
from problem import BATCH, RATE, custom_loop, trained
from torch_hal_horovod import HorovodStrategy

from torch_hal import Runtime, Trainer
from torch_hal.strategies import DDPStrategy

NAME, FILE = sys.argv[1:]
QUIET: dict[str, Any] = {"enable_progress_bar": False, "enable_checkpointing": False, "logger": False, "max_epochs": 2}
HALVED = partial(torch.optim.lr_scheduler.LambdaLR, lr_lambda=lambda step: 0.9**step)


def strategy(**options: Any) -> Any:
    """The one that is asked for; the options are Horovod's."""
    return HorovodStrategy(**options) if NAME == "horovod" else DDPStrategy()


def in_runtime(name: str, precision: str = "32-true", options: Any = None, **work: Any) -> None:
    """Note what your own loop gives."""
    arguments: dict[str, Any] = {"accelerator": "cpu", "devices": 2, "precision": precision}
    with Runtime(strategy=strategy(**(options or {})), **arguments) as runtime:
        said[name] = custom_loop(runtime, **work)


def in_trainer(
    name: str, precision: str = "32-true", options: Any = None, batch_size: int = BATCH, **more: Any
) -> None:
    """Note what the Trainer gives."""
    arguments: dict[str, Any] = {"accelerator": "cpu", "devices": 2, "precision": precision, **QUIET, **more}
    said[name] = trained(Trainer(strategy=strategy(**(options or {})), **arguments), batch_size=batch_size)


said: dict[str, Any] = {}
if __name__ == "__main__":
    in_runtime("runtime 16-true", "16-true", optimizer=torch.optim.SGD)
    for precision in ("32-true", "64-true", "bf16-mixed", "16-mixed"):
        in_runtime(f"runtime {precision}", precision)
        in_trainer(f"trainer {precision}", precision)
        in_runtime(f"runtime clipped {precision}", precision, clip=0.05)
        in_trainer(f"trainer clipped {precision}", precision, gradient_clip_val=0.05)
    in_runtime("seeds differ", seed=None)
    # ITEMS / 2 / 4 = 12 batches of 4 in each process, in groups of 5: the last group is a short one.
    in_runtime("no_sync", batch_size=4, accumulate=5, no_sync=True)
    in_runtime("passes", batch_size=4, accumulate=5, no_sync=NAME == "ddp", options={"backward_passes_per_step": 5})
    in_trainer("accumulated", batch_size=4, accumulate_grad_batches=5)
    in_trainer("accumulated, given twice", "32-true", {"backward_passes_per_step": 5}, 4, accumulate_grad_batches=5)
    # 2 batches of 4 are 1 of 8.
    in_runtime("in pieces", batch_size=4, accumulate=2, options={"backward_passes_per_step": 2}, no_sync=NAME == "ddp")
    in_runtime("fp16", options={"compression": "fp16"})
    in_runtime("predivided", options={"gradient_predivide_factor": 2.0})
    sgd = torch.optim.SGD
    in_runtime("sum", optimizer=sgd, rate=RATE if NAME == "horovod" else 2 * RATE, options={"op": "sum"})
    # Without no_sync gradients are reduced at each pass; what is reduced twice must not count twice.
    in_runtime(
        "sum of passes", optimizer=sgd, accumulate=2, rate=RATE * (2 - (NAME == "horovod")), options={"op": "sum"}
    )
    scaled = {"scale_learning_rate": True}
    in_runtime("scaled", optimizer=sgd, rate=RATE if NAME == "horovod" else 2 * RATE, options=scaled, schedule=HALVED)
    with Runtime(accelerator="cpu", devices=2, strategy=NAME) as last:
        last.launch()
        if last.is_main_process:
            torch.save(said, FILE)
        last.barrier()
