"""What a step took that it should not."""

from __future__ import annotations

import logging

__all__ = ["StepChecks"]

logger = logging.getLogger(__name__)

_WARM_UP = 2
"""Steps that are compiled in any case: the first, and the one that first finds the optimizer's state."""


class StepChecks:
    """Looks, at the end of each step, for operations left to the host and for graphs compiled anew; logs a warning."""

    def __init__(self) -> None:
        self._steps = 0
        self._compiled = 0
        self._on_host: set[str] = set()

    def look(self) -> None:
        """Look at the step that has just ended."""
        import torch_xla.debug.metrics as metrics
        import torch_xla.runtime as xr

        self._steps += 1
        compiled, on_host = xr.get_num_cached_compilation_graph(), set(metrics.executed_fallback_ops())
        if compiled > self._compiled and self._steps > _WARM_UP:
            logger.warning(
                "step %s was compiled anew: its shapes, or values that its operations depend on, differ from those of "
                "the steps before",
                self._steps,
            )
        if new := sorted(on_host - self._on_host):
            logger.warning("step %s: XLA left operations to the host: %s", self._steps, ", ".join(new))
        self._compiled, self._on_host = compiled, on_host
