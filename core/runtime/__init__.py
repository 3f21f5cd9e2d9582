"""Runtime: hardware, processes, precision and checkpoints for your own loop."""

from core.runtime.checkpoint.project import ProjectConfiguration
from core.runtime.free_memory import release_memory
from core.runtime.gradient_state import GradientAccumulationPlugin
from core.runtime.runtime import Runtime

__all__ = ["GradientAccumulationPlugin", "ProjectConfiguration", "Runtime", "release_memory"]
