"""Runtime: hardware, processes, precision and checkpoints for your own loop."""

from .checkpoint.project import ProjectConfiguration
from .free_functions import release_memory
from .gradient_state import GradientAccumulationPlugin
from .runtime import Runtime

__all__ = ["GradientAccumulationPlugin", "ProjectConfiguration", "Runtime", "release_memory"]
