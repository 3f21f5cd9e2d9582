"""Runtime: hardware, processes, precision and checkpoints for your own loop."""

from core.runtime.loaders import GradientAccumulationPlugin
from core.runtime.memory import release_memory
from core.runtime.project import ProjectConfiguration
from core.runtime.runtime import Runtime

__all__ = ["GradientAccumulationPlugin", "ProjectConfiguration", "Runtime", "release_memory"]
