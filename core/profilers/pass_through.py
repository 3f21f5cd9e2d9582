"""PassThroughProfiler: measures nothing."""

from __future__ import annotations

from .base import Profiler

__all__ = ["PassThroughProfiler"]


class PassThroughProfiler(Profiler):
    """What ``trainer.profiler`` is if none was requested, so that ``trainer.profiler.profile(...)`` always works."""

    def start(self, action_name: str) -> None:
        """Do nothing."""

    def stop(self, action_name: str) -> None:
        """Do nothing."""

    def summary(self) -> str:
        """Nothing."""
        return ""
