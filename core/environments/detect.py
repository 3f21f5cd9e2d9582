"""Detecting from environment variables, without torch, which cluster started this process."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["LAUNCHED", "TORCHRUN_VARIABLES", "local", "torchelastic"]

LAUNCHED = "CORE_LAUNCHED_PLAN"
"""Set by a strategy's launcher in the processes that it starts: the Plan that they run, as JSON."""

TORCHRUN_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""The variables that torchrun sets. Whoever starts processes by hand must set them too."""


def local(environ: Mapping[str, str]) -> bool:
    """Always true: any process can run on its own."""
    del environ
    return True


def torchelastic(environ: Mapping[str, str]) -> bool:
    """Whether all of torchrun's variables are set, and were not set by a strategy's launcher."""
    return LAUNCHED not in environ and all(variable in environ for variable in TORCHRUN_VARIABLES)
