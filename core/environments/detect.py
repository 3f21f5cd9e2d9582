"""Torch-free answers to "was this process started by that cluster?", from environment variables alone."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["LAUNCHED", "TORCHRUN_VARIABLES", "local", "torchelastic"]

LAUNCHED = "CORE_LAUNCHED_PLAN"
"""Set by a strategy's launcher in the processes that it starts, to the Plan they belong to."""

TORCHRUN_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun sets, and what anyone must set who starts processes by hand."""


def local(environ: Mapping[str, str]) -> bool:
    """Always: a process that no cluster started is on its own."""
    del environ
    return True


def torchelastic(environ: Mapping[str, str]) -> bool:
    """Whether torchrun's variables are all there, and it was no launcher of ours that set them."""
    return LAUNCHED not in environ and all(variable in environ for variable in TORCHRUN_VARIABLES)
