"""Checks of a step for fallbacks and recompilation."""

from __future__ import annotations

import logging

__all__ = ["StepChecks"]

logger = logging.getLogger(__name__)

_WARM_UP = 2
"""The number of steps that are always compiled: the first, and the first with optimizer state."""


class StepChecks:
    """Logs a warning at the end of a step if operations ran on the host or graphs were compiled again."""

    def __init__(self) -> None:
        self._steps = 0
        self._compiled = 0
        self._on_host: set[str] = set()

    def look(self) -> None:
        """Check the step that has just ended."""
        import torch_xla.debug.metrics as metrics
        import torch_xla.runtime as xr

        self._steps += 1
        compiled, on_host = xr.get_num_cached_compilation_graph(), set(metrics.executed_fallback_ops())
        if compiled > self._compiled and self._steps > _WARM_UP:
            logger.warning(
                "step %s was compiled again: its shapes, or values that its operations depend on, differ from earlier "
                "steps",
                self._steps,
            )
        if new := sorted(on_host - self._on_host):
            logger.warning("step %s: operations ran on the host instead of XLA: %s", self._steps, ", ".join(new))
        self._compiled, self._on_host = compiled, on_host
