"""Runtime: hardware, processes, precision and checkpoints for your own loop."""

from .checkpoint.project import ProjectConfiguration
from .gradient_state import GradientAccumulationPlugin
from .partial_state import release_memory
from .runtime import Runtime

__all__ = ["GradientAccumulationPlugin", "ProjectConfiguration", "Runtime", "release_memory"]
