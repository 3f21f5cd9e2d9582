"""Runtime: hardware, processes, precision and checkpoints for your own loop."""

from core.runtime.runtime import Runtime

__all__ = ["Runtime"]
