"""``left_alone.py signal|save``: rank 0 is killed, while rank 1 does something in which it would wait for rank 0.

With ``signal`` rank 1 then gets SIGTERM at the end of its batch, as torchrun's agent sends it; with ``save`` it waits
in a save, in which rank 0 is killed.
"""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from signalled import Net  # type: ignore[import-not-found]
from torch.utils.data import DataLoader, TensorDataset

from core import Callback, Trainer

OUT = Path(os.environ["OUT"])


def die() -> None:
    print(f"dying at {time.monotonic()}", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def is_running(process: int) -> bool:
    try:
        return ") Z" not in Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


class Die(Callback):
    def on_train_start(self, trainer: Any, module: Any) -> None:
        (OUT / f"pid.{trainer.global_rank}").write_text(str(os.getpid()))

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx != 4:
            return
        if sys.argv[1] == "save":
            trainer.save_checkpoint(OUT / "saved")
        if trainer.global_rank == 0:
            die()
        first = int((OUT / "pid.0").read_text())
        while is_running(first):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1.5)  # until the signal is known

    def on_save_checkpoint(self, trainer: Any, module: Any, checkpoint: dict[str, Any]) -> None:
        if trainer.global_rank == 0:
            time.sleep(1.0)  # rank 1 waits by now
            die()


if __name__ == "__main__":
    Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=2,
        max_epochs=1,
        callbacks=[Die()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(Net(), DataLoader(TensorDataset(torch.randn(160, 4)), batch_size=2, num_workers=2))
