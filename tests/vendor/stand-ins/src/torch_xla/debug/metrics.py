"""Counters."""

from __future__ import annotations

from stand_ins import recorded

__all__ = ["executed_fallback_ops", "metric_data"]


@recorded("metrics.executed_fallback_ops")
def executed_fallback_ops() -> list[str]:
    """Operations that were left to the host."""
    return []


@recorded("metrics.metric_data")
def metric_data(name: str) -> tuple[int, float, tuple[tuple[float, float], ...]] | None:
    """How often something was measured, the sum, and each time with its value; nothing is."""
    return None
