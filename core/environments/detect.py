"""Torch-free answers to "was this process started by that cluster?", from environment variables alone."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["TORCHRUN_VARIABLES", "local", "torchelastic"]

TORCHRUN_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun sets, and what anyone must set who starts processes by hand."""


def local(environ: Mapping[str, str]) -> bool:
    """Always: a process that no cluster started is on its own."""
    del environ
    return True


def torchelastic(environ: Mapping[str, str]) -> bool:
    """Whether torchrun's variables are all there."""
    return all(variable in environ for variable in TORCHRUN_VARIABLES)
