"""Runtime: hardware, processes, precision and checkpoints for your own loop."""

from core.runtime.random import seed_everything
from core.runtime.runtime import Runtime

__all__ = ["Runtime", "seed_everything"]
