"""One of two replicas that need each other: ``resumed.py OUT NUMBER LIGHTHOUSE STEPS KILLED_AT [CHECKPOINT]``.

It writes its weights after each step to ``OUT/weights-NUMBER``.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from problem import Linear, loader_of
from torch_hal_torchft import TorchFTStrategy

from torch_hal import Callback, Trainer
from torch_hal.callbacks import ModelCheckpoint

OUT, NUMBER, LIGHTHOUSE, STEPS, KILLED_AT = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], *map(int, sys.argv[4:6])


class Weights(Callback):
    """After each step; the process is killed after one of them."""

    def __init__(self) -> None:
        self.seen: dict[int, Any] = {}

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.seen[trainer.global_step] = [parameter.detach().clone() for parameter in module.parameters()]
        if trainer.global_step == KILLED_AT:
            os.kill(os.getpid(), signal.SIGKILL)


weights = Weights()
strategy = TorchFTStrategy(lighthouse=LIGHTHOUSE, replica_id=f"replica_{NUMBER}", min_replicas=2, timeout=60.0)
saving = ModelCheckpoint(str(OUT / f"saved-{NUMBER}"), every_n_train_steps=5, save_top_k=-1, filename="{step}")
quiet: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
trainer = Trainer(
    accelerator="cpu", strategy=strategy, max_steps=STEPS, max_epochs=-1, callbacks=[weights, saving], **quiet
)
trainer.fit(Linear(), loader_of(NUMBER), ckpt_path=sys.argv[6] if len(sys.argv) > 6 else None)
torch.save(weights.seen, OUT / f"weights-{NUMBER}")
