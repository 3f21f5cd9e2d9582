"""The device's random number generator in checkpoints of Transformers' Trainer, which knows those of some types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from torch_hal_accelerate import random_state
from torch_hal_accelerate.active import active

__all__ = ["DeviceRandomState", "extend_trainer"]


class DeviceRandomState(TrainerCallback):
    """Saves the state of each process's device with a checkpoint, and restores it when the Trainer resumes."""

    def __init__(self) -> None:
        self._resumed: Path | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Note the checkpoint: a run that resumes begins with its number of steps."""
        self._resumed = _folder(args, state) if state.global_step > 0 else None

    def on_step_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Before the first step, and after the Trainer has restored the host's generators."""
        made, folder = active(), self._resumed
        self._resumed = None
        if folder is not None and made is not None and made.strategy.root_device.type != "cpu":
            random_state.load(made, folder)

    def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """When the Trainer has written the rest of the checkpoint."""
        made = active()
        if made is not None and made.strategy.root_device.type != "cpu":
            random_state.save(made, _folder(args, state))


def _folder(args: Any, state: Any) -> Path:
    return Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"


def extend_trainer(module: Any) -> None:
    """Add the callback to those of every Trainer; ``module`` is ``transformers.trainer``."""
    if DeviceRandomState not in module.DEFAULT_CALLBACKS:
        module.DEFAULT_CALLBACKS.append(DeviceRandomState)
