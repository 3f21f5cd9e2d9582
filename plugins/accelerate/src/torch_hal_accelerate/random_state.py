"""Files with the state of a device's random number generator, next to those that Accelerate and Transformers write."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import torch

from torch_hal_accelerate.active import Active

__all__ = ["load", "save"]

logger = logging.getLogger(__name__)


def save(made: Active, folder: str | os.PathLike[str]) -> None:
    """Write the state of this process's device into a checkpoint's folder; the host's states are there already."""
    strategy = made.strategy
    if strategy.accelerator.missing_rng_function(strategy.root_device) is not None:
        return  # the Plan has said so
    state = strategy.accelerator.get_rng_state(strategy.root_device)
    Path(folder).mkdir(parents=True, exist_ok=True)
    torch.save({"device_type": strategy.root_device.type, "state": state}, _path(made, folder))


def load(made: Active, folder: str | os.PathLike[str]) -> None:
    """Restore it, if the folder has one for this process and this type of device."""
    strategy, path = made.strategy, _path(made, folder)
    if strategy.accelerator.missing_rng_function(strategy.root_device) is not None:
        return
    if not path.exists():
        logger.warning("the random number generator of %s is not restored: there is no %s", strategy.root_device, path)
        return
    saved = torch.load(path, weights_only=True)
    if saved["device_type"] != strategy.root_device.type:
        logger.warning(
            "the random number generator of %s is not restored: %s comes from a device of type %r",
            strategy.root_device,
            path,
            saved["device_type"],
        )
        return
    strategy.accelerator.set_rng_state(saved["state"], strategy.root_device)


def _path(made: Active, folder: str | os.PathLike[str]) -> Path:
    return Path(folder) / f"torch_hal_device_rng_{made.strategy.global_rank}.pth"
