"""What a checkpoint says of its run, and putting its parts back."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from core.errors import CheckpointError, quoted
from core.plan import Plan

__all__ = ["restore", "run_facts", "unfit"]


def run_facts(plan: Plan) -> dict[str, Any]:
    """The checkpoint's reserved part ``"core"``: world size, strategy, and the versions of all that took part."""
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
    """Call each of ``loads`` with its part of ``checkpoint``; returns the parts that none took.

    Raises:
        CheckpointError: A part is missing, or is not of the form that is taken.
    """
    missing = [name for name in loads if name not in checkpoint]
    if missing:
        raise CheckpointError(
            f"state: {quoted(missing)} not in checkpoint {os.fspath(path)!r}. Valid: {quoted(sorted(checkpoint))}."
        )
    for name, load in loads.items():
        with unfit(name, path):
            load(checkpoint[name])
    return {name: part for name, part in checkpoint.items() if name not in loads}


@contextmanager
def unfit(name: str, path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn what a ``load_state_dict`` raises within into a CheckpointError that names the part and the checkpoint."""
    try:
        yield
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"checkpoint {os.fspath(path)!r}: its {name!r} cannot be taken back by what is to take it: {error}"
        ) from error
