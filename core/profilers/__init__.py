"""Profilers: how long the parts of a Trainer's run take, for ``Trainer(profiler=...)``.

A profiler is requested by name (``Trainer(profiler="simple")``) or made by its class. A distribution adds one with an
entry point in the group ``core.profilers``; its class is called without arguments::

    [project.entry-points."core.profilers"]
    acme = "acme_tracking.profiler:AcmeProfiler"
"""

from __future__ import annotations

from ..utilities.lazy import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .base import PassThroughProfiler, Profiler, find_profiler
    from .pytorch import PyTorchProfiler
    from .timing import AdvancedProfiler, SimpleProfiler

__all__ = ["AdvancedProfiler", "PassThroughProfiler", "Profiler", "PyTorchProfiler", "SimpleProfiler", "find_profiler"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "AdvancedProfiler": "torch_hal.profilers.timing",
        "PassThroughProfiler": "torch_hal.profilers.base",
        "Profiler": "torch_hal.profilers.base",
        "PyTorchProfiler": "torch_hal.profilers.pytorch",
        "SimpleProfiler": "torch_hal.profilers.timing",
        "find_profiler": "torch_hal.profilers.base",
    },
)
