"""A replica: ``replica.py OUT NAME LIGHTHOUSE STEPS [KILLED_AT]``. What it saw is in ``OUT/said-NAME``."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from problem import Linear, loader_of
from torch_hal_torchft import TorchFTStrategy

from torch_hal import Callback, Trainer
from torch_hal.callbacks import ModelCheckpoint

OUT, NAME, LIGHTHOUSE, STEPS = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
KILLED_AT = int(sys.argv[5]) if len(sys.argv) > 5 else -1


class Notes(Callback):
    """After each call of the optimizer."""

    def __init__(self) -> None:
        self.seen: dict[int, Any] = {}
        self.calls = 0

    def on_train_start(self, trainer: Any, module: Any) -> None:
        (OUT / f"ready-{NAME}").touch()

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        step = trainer.global_step
        self.calls += 1
        rate = trainer.optimizers[0].param_groups[0]["lr"]
        self.seen[step] = {"rate": rate, "weights": module.net.weight.flatten().tolist()}
        (OUT / f"new-{NAME}").write_text(str(step))
        (OUT / f"new-{NAME}").rename(OUT / f"at-{NAME}")
        if step == KILLED_AT:
            os.kill(os.getpid(), signal.SIGKILL)
        while step >= 30 and not (OUT / "ready-b2").exists():  # so that it has steps together with the restarted one
            time.sleep(0.05)
        time.sleep(0.05)  # as a real model would take


notes = Notes()
strategy = TorchFTStrategy(
    lighthouse=LIGHTHOUSE, replica_id=f"replica_{ord(NAME[0]) - ord('a')}", timeout=20.0, quorum_timeout=60.0
)
saving = ModelCheckpoint(str(OUT / f"saved-{NAME}"), every_n_train_steps=10, save_top_k=-1, filename="{step}")
quiet: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
trainer = Trainer(
    accelerator="cpu", strategy=strategy, max_steps=STEPS, max_epochs=-1, callbacks=[notes, saving], **quiet
)
number = ord(NAME[0])
trainer.fit(Linear(seed=number), loader_of(number, 8 * 2000))
said = {"steps": trainer.global_step, "calls": notes.calls, "seen": notes.seen}
(OUT / f"said-{NAME}").write_text(json.dumps(said))
