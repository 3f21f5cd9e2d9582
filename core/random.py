"""Random number generators: seeding all of them, taking and restoring their state."""

from __future__ import annotations

import importlib.util
import logging
import random
import sys
from typing import Any

import torch

from core.accelerators.base import Accelerator
from core.errors import ConfigurationError

__all__ = ["get_host_rng_state", "get_rng_state", "seed_everything", "set_host_rng_state", "set_rng_state"]

logger = logging.getLogger(__name__)

MAX_SEED = 2**32 - 1
"""The largest seed that all generators take; numpy's is the smallest range."""


def seed_everything(seed: int) -> int:
    """Seed Python's, numpy's (where it is installed) and torch's generators on every device.

    Args:
        seed: From 0 to 2**32 - 1.

    Raises:
        ConfigurationError: It is no such number.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= MAX_SEED:
        raise ConfigurationError(f"seed={seed!r}: not a seed. Valid: a whole number from 0 to {MAX_SEED}.")
    random.seed(seed)
    if importlib.util.find_spec("numpy") is not None:
        import numpy as np

        np.random.seed(seed)  # the global generator, which is the one that data sets use
    torch.manual_seed(seed)
    return seed


def get_rng_state(accelerator: Accelerator, device: torch.device) -> dict[str, Any]:
    """The state of every generator that training draws from, as tensors and plain values."""
    return {**get_host_rng_state(), "device": accelerator.get_rng_state(device), "device_type": device.type}


def set_rng_state(state: dict[str, Any], accelerator: Accelerator, device: torch.device) -> None:
    """Put every generator back into ``state``, as :func:`get_rng_state` gave it.

    The state of another type of device's generator is left out, with a warning in the log: it has another form.
    """
    set_host_rng_state(state)
    if state["device_type"] == device.type:
        accelerator.set_rng_state(state["device"], device)
    else:
        logger.warning(
            "the generator of %s goes on as it is: the state is of a device of type %r", device, state["device_type"]
        )


def get_host_rng_state() -> dict[str, Any]:
    """The state of Python's, numpy's (where it is in use) and torch's host generator."""
    state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if "numpy" in sys.modules:
        name, keys, position, has_gauss, gauss = sys.modules["numpy"].random.get_state()
        state["numpy"] = (name, torch.from_numpy(keys.astype("int64")), int(position), int(has_gauss), float(gauss))
    return state


def set_host_rng_state(state: dict[str, Any]) -> None:
    """Put the host's generators back into ``state``, as :func:`get_host_rng_state` gave it."""
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    torch.set_rng_state(state["torch"])
    if "numpy" in state:
        import numpy as np

        name, keys, *rest = state["numpy"]
        np.random.set_state((name, keys.numpy().astype("uint32"), *rest))
