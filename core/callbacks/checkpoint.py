"""The base class of callbacks that write checkpoints."""

from __future__ import annotations

from core.callbacks.base import Callback

__all__ = ["Checkpoint"]


class Checkpoint(Callback):
    """A callback that writes checkpoints. It is called after all others, so its checkpoints contain what they did."""

    _given_dirpath: str | None = None
    """The directory that the user named; by default each run has its own."""
