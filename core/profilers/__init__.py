"""Profilers: how long the parts of a Trainer's run take, for ``Trainer(profiler=...)``."""

from core.profilers.advanced import AdvancedProfiler
from core.profilers.base import Profiler
from core.profilers.find import find_profiler
from core.profilers.pass_through import PassThroughProfiler
from core.profilers.pytorch import PyTorchProfiler
from core.profilers.simple import SimpleProfiler
from core.utilities.lazy import lazy_names

__all__ = ["AdvancedProfiler", "PassThroughProfiler", "Profiler", "PyTorchProfiler", "SimpleProfiler", "find_profiler"]

__getattr__, __dir__ = lazy_names(__name__, {})
