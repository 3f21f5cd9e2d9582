"""AdvancedProfiler: the functions that each action calls, by cProfile."""

from __future__ import annotations

import cProfile
import io
import os
import pstats
from typing import Any

from ..errors import ConfigurationError
from .base import Profiler

__all__ = ["AdvancedProfiler"]


class AdvancedProfiler(Profiler):
    """Measures the functions that each action calls, with :mod:`cProfile`, which slows them down.

    An action within another one is part of it: Python can measure only one at a time.

    Args:
        dirpath: See :class:`Profiler`.
        filename: Likewise.
        line_count_restriction: How many functions the report has of each action: a number or a fraction.
        dump_stats: Whether to write each action's ``.prof`` file as well, for ``pstats``; needs ``dirpath`` or
            ``filename``.
    """

    def __init__(
        self,
        dirpath: str | os.PathLike[str] | None = None,
        filename: str | None = None,
        line_count_restriction: float = 1.0,
        dump_stats: bool = False,
    ) -> None:
        super().__init__(dirpath, filename)
        if dump_stats and dirpath is None and filename is None:
            raise ConfigurationError("dump_stats=True: give dirpath or filename, where the files go.")
        self.line_count_restriction, self.dump_stats = line_count_restriction, dump_stats
        self.profiled_actions: dict[str, cProfile.Profile] = {}
        self._running: str | None = None

    def setup(self, stage: str, rank: int = 0, log_dir: str | None = None) -> None:
        """Forget the run before."""
        super().setup(stage, rank, log_dir)
        self.profiled_actions, self._running = {}, None

    def start(self, action_name: str) -> None:
        """See :meth:`Profiler.start`."""
        if self._running is None:
            self._running = action_name
            self.profiled_actions.setdefault(action_name, cProfile.Profile()).enable()

    def stop(self, action_name: str) -> None:
        """See :meth:`Profiler.stop`."""
        if self._running == action_name:
            self.profiled_actions[action_name].disable()
            self._running = None

    def summary(self) -> str:
        """The report of ``pstats`` for each action, by the time with all that a function calls."""
        parts = []
        for name, profile in self.profiled_actions.items():
            text = io.StringIO()
            pstats.Stats(profile, stream=text).strip_dirs().sort_stats("cumulative").print_stats(
                self.line_count_restriction
            )
            parts.append(f"Profile of {name}\n{text.getvalue()}")
            path = self.path(f"-{_as_file_name(name)}.prof") if self.dump_stats else None
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                profile.dump_stats(path)
        return "\n".join(parts)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "profiled_actions": {}, "_running": None}


def _as_file_name(name: str) -> str:
    return "".join(character if character.isalnum() or character in "._-" else "_" for character in name)
