"""Profilers: how long the parts of a Trainer's run take, for ``Trainer(profiler=...)``."""

from ..utilities.lazy import lazy_names
from .advanced import AdvancedProfiler
from .base import Profiler
from .find import find_profiler
from .pass_through import PassThroughProfiler
from .pytorch import PyTorchProfiler
from .simple import SimpleProfiler

__all__ = ["AdvancedProfiler", "PassThroughProfiler", "Profiler", "PyTorchProfiler", "SimpleProfiler", "find_profiler"]

__getattr__, __dir__ = lazy_names(__name__, {})
