"""Random number generators: seeding them, and reading and restoring their state."""

from __future__ import annotations

import importlib.util
import logging
import random
import struct
import sys
from typing import Any

import torch

from .accelerators.base import Accelerator
from .discovery.ranks import launched_ranks
from .errors import ConfigurationError
from .utilities.live_runtimes import last_run

__all__ = ["get_host_rng_state", "get_rng_state", "seed_everything", "set_host_rng_state", "set_rng_state", "set_seed"]

logger = logging.getLogger(__name__)

MAX_SEED = 2**32 - 1
"""The largest seed that all generators accept; numpy has the smallest range."""


def seed_everything(seed: int | None = None, workers: bool = True, verbose: bool = False) -> int:
    """Seed the generators of Python, numpy (if installed) and torch, on every device.

    Args:
        seed: An integer from 0 to 2**32 - 1; ``None`` for 0.
        workers: Only ``True``: each worker of a DataLoader has its own seed, which follows torch's.
        verbose: Whether the seed is logged, at level INFO.

    Returns:
        The seed.

    Raises:
        ConfigurationError: ``seed`` is not such an integer, or ``workers`` is not ``True``.
    """
    if workers is not True:
        raise ConfigurationError(
            f"workers={workers!r}: the workers of a DataLoader always have seeds that follow torch's. Remove the "
            "argument, or set it to True."
        )
    seed = _checked(0 if seed is None else seed)
    random.seed(seed)
    if importlib.util.find_spec("numpy") is not None:
        import numpy as np

        np.random.seed(seed)  # the global generator, which data sets use
    torch.manual_seed(seed)
    if verbose:
        logger.info("the seed is %d", seed)
    return seed


def set_seed(seed: int, device_specific: bool = False, deterministic: bool = False) -> int:
    """Seed the generators of Python, numpy (if installed) and torch, as :func:`seed_everything`.

    Args:
        seed: An integer from 0 to 2**32 - 1.
        device_specific: Whether each process gets another seed: ``seed`` plus the number of the process.
        deterministic: Whether torch uses deterministic algorithms from now on, or raises where it has none.

    Returns:
        The seed of this process.

    Raises:
        ConfigurationError: ``seed`` is not such an integer.
    """
    own = seed_everything(_checked(seed))
    if device_specific:
        run = last_run()
        rank = launched_ranks()[0] if run is None else run.process_index
        own = seed_everything((seed + rank) % (MAX_SEED + 1))
    if deterministic:
        torch.use_deterministic_algorithms(True)
    return own


def _checked(seed: Any) -> int:
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= MAX_SEED:
        raise ConfigurationError(f"seed={seed!r} must be an integer from 0 to {MAX_SEED}.")
    return seed


def get_rng_state(accelerator: Accelerator, device: torch.device) -> dict[str, Any]:
    """The state of every generator that training draws from, as tensors and plain values.

    ``device`` is ``None`` where torch cannot read the generator of the device; the Plan has said so.
    """
    is_readable = accelerator.missing_rng_function(device) is None
    state = accelerator.get_rng_state(device) if is_readable else None
    return {**get_host_rng_state(), "device": state, "device_type": device.type}


def set_rng_state(state: dict[str, Any], accelerator: Accelerator, device: torch.device) -> None:
    """Restore every generator to ``state``, which :func:`get_rng_state` returned.

    The generator of another type of device has another format: its state is ignored, with a warning in the log.
    """
    set_host_rng_state(state)
    if state["device_type"] == device.type and (state["device"] is None or accelerator.missing_rng_function(device)):
        return  # the Plan has said so
    if state["device_type"] == device.type:
        accelerator.set_rng_state(state["device"], device)
    else:
        logger.warning(
            "the random number generator of %s was not restored: the state comes from a device of type %r",
            device,
            state["device_type"],
        )


def get_host_rng_state() -> dict[str, Any]:
    """The state of the host's generators: Python's, torch's, and numpy's if it is imported.

    Raises:
        ConfigurationError: ``numpy.random`` draws from another bit generator than numpy's default.
    """
    version, numbers, gauss = random.getstate()
    # A tensor is written, checked and read as one; a tuple's numbers one by one.
    packed = bytearray(struct.pack(f"{len(numbers)}q", *numbers))
    python = (version, torch.frombuffer(packed, dtype=torch.int64), gauss)
    state: dict[str, Any] = {"python": python, "torch": torch.get_rng_state()}
    if "numpy" in sys.modules:
        numpy_state = sys.modules["numpy"].random.get_state(legacy=False)
        name, inner, has_gauss = (numpy_state[key] for key in ("bit_generator", "state", "has_gauss"))
        if name != "MT19937":
            raise ConfigurationError(
                f"numpy.random draws from {name}: its state cannot be saved. Leave its default, MT19937, and draw from "
                "a numpy.random.Generator of your own."
            )
        keys = torch.from_numpy(inner["key"].astype("int64"))
        state["numpy"] = (name, keys, int(inner["pos"]), int(has_gauss), float(numpy_state["gauss"]))
    return state


def set_host_rng_state(state: dict[str, Any]) -> None:
    """Restore the host's generators to ``state``, which :func:`get_host_rng_state` returned."""
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(torch.as_tensor(numbers).tolist()), gauss))
    torch.set_rng_state(state["torch"])
    if "numpy" in state:
        import numpy as np

        name, keys, *rest = state["numpy"]
        np.random.set_state((name, keys.numpy().astype("uint32"), *rest))
