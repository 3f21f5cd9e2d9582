"""The line with which a fit begins: what runs on what."""

from __future__ import annotations

import logging

from core.callbacks.model_summary import ModelSummary, start_line
from core.trainer.run import Run

__all__ = ["say_what_runs"]

logger = logging.getLogger(__name__)


def say_what_runs(run: Run) -> None:
    """Say it in process 0 at INFO, unless a ModelSummary says it above its table."""
    if not run.runtime.strategy.is_global_zero:
        return
    if not any(isinstance(callback, ModelSummary) and callback.max_depth for callback in run.hooks.callbacks):
        logger.info("%s", start_line(run.runtime.plan))
