"""Facts about the run in a checkpoint, and loading a checkpoint's parts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from ...errors import CheckpointError, quoted
from ...plan import Plan

__all__ = ["restore", "run_facts", "load_errors"]


def run_facts(plan: Plan) -> dict[str, Any]:
    """The checkpoint's reserved part ``"core"``: world size, names of backends, and versions of their packages."""
    origins = {choice.origin for choice in plan.choices().values() if " " in choice.origin}
    versions = dict(origin.rsplit(" ", 1) for origin in sorted(origins) if origin != "this process")
    return {
        "world_size": plan.world_size,
        "strategy": plan.strategy.name,
        "precision": plan.precision.name,
        "accelerator": plan.accelerator.name,
        "versions": {**versions, "torch": str(torch.__version__)},
    }


def restore(
    checkpoint: dict[str, Any], loads: Mapping[str, Callable[[Any], Any]], path: str | os.PathLike[str]
) -> dict[str, Any]:
    """Call each of ``loads`` with its part of ``checkpoint``; returns the other parts.

    Raises:
        CheckpointError: A part is missing or could not be loaded.
    """
    missing = [name for name in loads if name not in checkpoint]
    if missing:
        raise CheckpointError(
            f"state: checkpoint {os.fspath(path)!r} has no part {quoted(missing)}. Its parts: "
            f"{quoted(sorted(checkpoint))}."
        )
    for name, load in loads.items():
        with load_errors(name, path):
            load(checkpoint[name])
    return {name: part for name, part in checkpoint.items() if name not in loads}


@contextmanager
def load_errors(name: str, path: str | os.PathLike[str]) -> Iterator[None]:
    """A context that turns the errors of a ``load_state_dict`` into a CheckpointError with part and checkpoint."""
    try:
        yield
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"checkpoint {os.fspath(path)!r}: its part {name!r} could not be loaded: {error}\nLoad it into what it was "
            "saved from, with the same sizes and settings."
        ) from error
