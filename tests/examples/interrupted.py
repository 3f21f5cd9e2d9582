"""Runs a program of ``examples/``, kills this process after some batches if asked to, and records how each fit ends.

The environment names the program (``EXAMPLE``), the folder for records (``RECORDS``), a metric that training logs
(``MONITOR``), and the number of training batches after which to die (``KILL_AFTER``; 0 for never). The arguments are
the program's.
"""

from __future__ import annotations

import functools
import importlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

from core import Callback, Trainer
from core.callbacks import EarlyStopping, LearningRateMonitor
from core.random import get_host_rng_state

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

RECORDS, KILL_AFTER = Path(os.environ["RECORDS"]), int(os.environ["KILL_AFTER"])


class Total(Callback):
    """Sums up what the module logs, over the whole run, as float64: a callback of a user's with a state."""

    def __init__(self, monitor: str) -> None:
        self.monitor, self.total, self.batches = monitor, 0.0, 0

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.total += float(trainer.callback_metrics[self.monitor])
        self.batches += 1

    def state_dict(self) -> dict[str, Any]:
        return {"total": self.total, "batches": self.batches}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.total, self.batches = state["total"], state["batches"]


class Kill(Callback):
    """Ends this process without any warning, after the hooks of all other callbacks."""

    batches = 0

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        Kill.batches += 1
        if Kill.batches == KILL_AFTER:
            os.kill(os.getpid(), signal.SIGKILL)


def own(callback: Callback) -> dict[str, Any]:
    """A callback's state, without the folders that differ between runs."""
    state = dict(callback.state_dict())
    for name in ("dirpath", "best_model_path", "kth_best_model_path", "last_model_path"):
        if name in state:
            state[name] = Path(state[name] or "").name if name != "dirpath" else None
    if "best_k_models" in state:
        state["best_k_models"] = {Path(path).name: score for path, score in state["best_k_models"].items()}
    return state


fit, fits = Trainer.fit, 0


@functools.wraps(fit)  # the CLI reads the arguments
def recorded_fit(self: Trainer, model: Any, *args: Any, **kwargs: Any) -> None:
    """``fit`` with the callbacks of this file; then write what it has left."""
    global fits
    monitor = os.environ["MONITOR"]
    never = EarlyStopping(monitor, patience=1000, check_on_train_epoch_end=True)
    self.callbacks[:] = [Total(monitor), never, LearningRateMonitor("step"), *self.callbacks, Kill()]
    fit(self, model, *args, **kwargs)
    left = {
        "module": model.state_dict(),
        "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
        "callbacks": {type(callback).__name__: own(callback) for callback in self.callbacks},
        "metrics": [dict(self.callback_metrics), dict(self.logged_metrics)],
        "position": (self.current_epoch, self.global_step),
        "generators": get_host_rng_state(),
    }
    torch.save(left, RECORDS / f"fit {fits}, rank {self.global_rank}.pt")
    fits += 1


if __name__ == "__main__":
    Trainer.fit = recorded_fit  # type: ignore[method-assign]
    importlib.import_module(os.environ["EXAMPLE"]).main()
