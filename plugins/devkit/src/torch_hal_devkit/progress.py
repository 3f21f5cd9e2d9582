"""How far a run of the kit is: tests done, seconds so far, and about how many are left."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

__all__ = ["Progress"]

_EVERY = 5.0
"""Seconds between two lines."""
_ENOUGH = 0.1
"""The part that must be done before the rest can be estimated: workers of pytest-xdist take seconds to start."""
_PLAIN, _KILLS, _RUN = 0.25, 12.0, 60.0
"""Seconds of a test, of one that kills processes again and again, and of the first one that reads a run's observations:
what a run on two processes takes."""


class Progress:
    """Writes a line every few seconds.

    Args:
        config: Of the pytest session whose terminal shows them.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._weights: dict[str, float] = {}
        self._done = 0.0
        self._count = 0
        self._began = self._told = time.monotonic()

    def begin(self, ids: Sequence[str]) -> None:
        """The tests are known; each worker of pytest-xdist tells them."""
        if not self._weights:
            seen: set[str] = set()
            self._weights = {name: self._weight(name, seen) for name in ids}

    def done(self, name: str) -> None:
        """A test has ended."""
        self._count += 1
        self._done += self._weights.get(name.partition("@")[0], self._weights.get(name, _PLAIN))
        now = time.monotonic()
        if now - self._told >= _EVERY:
            self._told = now
            self._write(now - self._began)

    def _weight(self, name: str, seen: set[str]) -> float:
        if "test_a_killed_save" in name:
            return _KILLS
        size = next((size for size in ("multi_device", "one_device") if size in name), "")
        run = f"{name.rpartition('::')[0]} {size}"
        if not size or run in seen:
            return _PLAIN
        seen.add(run)
        return _RUN / (1 if size == "multi_device" else 2)

    def _write(self, seconds: float) -> None:
        total = sum(self._weights.values())
        is_known = self._done >= _ENOUGH * total > 0.0
        left = f", about {max(total - self._done, 0.0) * seconds / self._done:.0f} s left" if is_known else ""
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if terminal is not None:
            of = f" of {len(self._weights)}" if self._weights else ""
            terminal.ensure_newline()
            terminal.write_line(f"{self._count}{of} tests in {seconds:.0f} s{left}")
