"""The profilers that time actions in Python: SimpleProfiler by the clock, and AdvancedProfiler by cProfile."""

from __future__ import annotations

import cProfile
import io
import os
import pstats
import time
from typing import Any

from ..errors import ConfigurationError
from .base import Profiler


class SimpleProfiler(Profiler):
    """Measures the wall-clock time of each action. It does not wait for the device, so a step shows what is launched.

    Args:
        dirpath: See :class:`Profiler`.
        filename: Likewise.
        extended: Whether the report has the mean, the number of calls and the share of the whole time.
    """

    def __init__(
        self, dirpath: str | os.PathLike[str] | None = None, filename: str | None = None, extended: bool = True
    ) -> None:
        super().__init__(dirpath, filename)
        self.extended = extended
        self.recorded_durations: dict[str, list[float]] = {}
        """By action, the seconds of each call."""
        self.current_actions: dict[str, float] = {}
        self._begin = time.monotonic()

    def start(self, action_name: str) -> None:
        """See :meth:`Profiler.start`."""
        if action_name in self.current_actions:
            raise ConfigurationError(f"start({action_name!r}): this action is being measured already. Stop it first.")
        self.current_actions[action_name] = time.perf_counter()

    def stop(self, action_name: str) -> None:
        """See :meth:`Profiler.stop`."""
        end = time.perf_counter()
        if action_name not in self.current_actions:
            raise ConfigurationError(f"stop({action_name!r}): this action was not started.")
        self.recorded_durations.setdefault(action_name, []).append(end - self.current_actions.pop(action_name))

    def setup(self, stage: str, rank: int = 0, log_dir: str | None = None) -> None:
        """Forget the run before."""
        super().setup(stage, rank, log_dir)
        self.recorded_durations, self.current_actions, self._begin = {}, {}, time.monotonic()

    def summary(self) -> str:
        """A table, the longest actions first."""
        if not self.recorded_durations:
            return ""
        whole = time.monotonic() - self._begin
        rows = sorted(self.recorded_durations.items(), key=lambda item: -sum(item[1]))
        width = max(len(name) for name in self.recorded_durations)
        lines = [f"{'action':<{width}}  {'mean (s)':>10}  {'calls':>8}  {'total (s)':>10}  {'share':>6}"]
        if not self.extended:
            lines = [f"{'action':<{width}}  {'mean (s)':>10}  {'total (s)':>10}"]
        for name, durations in rows:
            total, mean = sum(durations), sum(durations) / len(durations)
            if self.extended:
                share = 100 * total / whole if whole else 0
                lines.append(f"{name:<{width}}  {mean:10.5g}  {len(durations):8d}  {total:10.5g}  {share:5.1f}%")
            else:
                lines.append(f"{name:<{width}}  {mean:10.5g}  {total:10.5g}")
        return f"Profile of {self._stage}, {whole:.5g} s in all\n" + "\n".join(lines) + "\n"


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
