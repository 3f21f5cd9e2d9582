"""A state that Accelerate has saved, loaded into what a run of ours has prepared."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...checkpoints.foreign import read_directory, weights_for
from ...checkpoints.safe_unpickling import load_tensors
from ...errors import CheckpointError, ConfigurationError
from ...random import set_rng_state
from ...strategies.base import Strategy
from ..prepare.wrappers import own_module
from .process_state import load_errors

logger = logging.getLogger(__name__)

RANDOM_STATES = "random_states_"
"""The prefix of the file that each process writes; its rank and ``.pkl`` follow."""
PARTS = {"model": "model", "optimizer": "optimizer", "scheduler": "scheduler", "object": "custom_checkpoint"}
"""The names of files, by kind of object."""


def is_accelerates(directory: str | os.PathLike[str]) -> bool:
    """Whether Accelerate has saved the state of a run there."""
    return Path(directory, f"{RANDOM_STATES}0.pkl").is_file()


def load_accelerate_state(
    directory: Path,
    strategy: Strategy,
    objects: Mapping[str, Sequence[Any]],
    load: Callable[[Any, Any], None],
    accumulation_steps: int,
) -> None:
    """Load a state that Accelerate has saved. Every process must call this function.

    A warning lists what is not restored, because the state does not contain it.

    Args:
        directory: Where its files are.
        strategy: Of the run.
        objects: What the run has prepared and registered, by kind.
        load: Loads a state into an object.
        accumulation_steps: The micro-batches of a step.

    Raises:
        CheckpointError: A file cannot be read or loaded, the run has other objects, it was saved within an
            accumulation, or its schedulers count other steps.
    """
    parts = read_directory(directory)
    ranks = [name for name in os.listdir(directory) if name.startswith(RANDOM_STATES)]
    names = {kind: [_name(kind, number) for number in range(len(found))] for kind, found in objects.items()}
    _check_counts(directory, parts, names)
    states = _random_states(directory, strategy.global_rank if len(ranks) == strategy.world_size else 0)
    if states.get("step", 0) % accumulation_steps:
        raise CheckpointError(
            f"input_dir={os.fspath(directory)!r}: Accelerate has saved it within an accumulation of gradients, and has "
            "not saved these. Use a state that was saved after an optimizer step."
        )
    if len(ranks) > 1 and any(_counts_processes(parts[name], parts) for name in names["scheduler"]):
        raise CheckpointError(
            f"input_dir={os.fspath(directory)!r}: saved by Accelerate on {len(ranks)} processes, where it steps a "
            f"scheduler {len(ranks)} times at each step of its optimizer, and torch-hal once: its learning rates would "
            "be others. Load the other parts: rest = runtime.load(path, {'model': model, 'optimizer': optimizer}), and "
            "bring the scheduler to its step by the state in rest['scheduler']."
        )
    for kind, found in objects.items():
        for name, obj in zip(names[kind], found, strict=True):
            with load_errors(name, directory):
                state = parts.pop(name)
                load(obj, weights_for(own_module(obj, strategy), state) if isinstance(obj, nn.Module) else state)
    with load_errors("scaler", directory):
        strategy.precision.load_state_dict(parts.pop("scaler", {}))
    has_generators = len(ranks) == strategy.world_size
    if has_generators:
        _restore_generators(states, strategy)
    if strategy.is_global_zero:
        logger.warning(
            "load_state: %s: saved by Accelerate on %d process(es). Restored: models, optimizers, schedulers, "
            "registered objects%s. Not restored, since the state does not contain it: the position in the data, for "
            "which a script calls skip_first_batches, and the order of shuffled data%s",
            directory,
            len(ranks),
            ", random number generators" * has_generators,
            "" if has_generators else f"; the random number generators, which are those of {len(ranks)} process(es)",
        )


def _name(kind: str, number: int) -> str:
    stem = PARTS[kind]
    return f"{stem}_{number}" if number or kind == "object" else stem


def _check_counts(directory: Path, parts: Mapping[str, Any], names: Mapping[str, list[str]]) -> None:
    wanted = {name for found in names.values() for name in found}
    saved = set(parts) - {"scaler"}
    if wanted != saved:
        raise CheckpointError(
            f"input_dir={os.fspath(directory)!r}: saved by Accelerate with other objects than this run has: it has "
            f"{', '.join(sorted(saved - wanted)) or 'nothing'} in addition, and lacks "
            f"{', '.join(sorted(wanted - saved)) or 'nothing'}. Prepare and register the same objects in the same "
            "order before load_state. Some of them only: runtime.load(path, {'model': model})."
        )


def _counts_processes(scheduler: Mapping[str, Any], parts: Mapping[str, Any]) -> bool:
    """Whether a scheduler has taken more steps than the optimizers, as far as these know theirs."""
    states = [state for name, part in parts.items() if name.startswith("optimizer") for state in part["state"].values()]
    steps = [int(state["step"]) for state in states if "step" in state]
    return not steps or int(scheduler["last_epoch"]) > max(steps)


def _random_states(directory: Path, rank: int) -> dict[str, Any]:
    """What a process has saved of its generators; numpy's is an array, which is all that is allowed in addition."""
    with torch.serialization.safe_globals(_classes_of_arrays()):
        states: dict[str, Any] = load_tensors(directory / f"{RANDOM_STATES}{rank}.pkl", "cpu")
    return states


def _classes_of_arrays() -> list[Any]:
    try:
        import numpy as np
    except ImportError as error:
        raise ConfigurationError(
            f"load_state: the random number generators that Accelerate has saved need numpy, which cannot be imported "
            f"({error}). Run: pip install numpy"
        ) from error
    rebuild = np.zeros(1).__reduce__()[0]  # numpy's own name of its module differs between versions
    return [rebuild, np.ndarray, np.dtype, np.dtypes.UInt32DType]


def _restore_generators(states: Mapping[str, Any], strategy: Strategy) -> None:
    device = strategy.root_device
    name, keys, *rest = states["numpy_random_seed"]
    of_device = states.get(f"torch_{device.type}_manual_seed")
    set_rng_state(
        {
            "python": states["random_state"],
            "torch": states["torch_manual_seed"],
            "numpy": (name, torch.from_numpy(keys.astype("int64")), *rest),
            "device": None if of_device is None else of_device[device.index or 0],
            "device_type": device.type,
        },
        strategy.accelerator,
        device,
    )
