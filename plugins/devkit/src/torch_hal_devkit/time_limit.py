"""A time limit for each test: one that hangs fails, and its message says where it hung."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["TEST_LIMIT", "Hung", "limited"]

TEST_LIMIT = 300.0
"""Seconds that one test may take by default; a run of processes may take three fifths of it."""


class Hung(AssertionError):
    """The test was stopped at its time limit."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise :class:`Hung` within the block after ``seconds``; a signal, so only in the main thread.

    Code that never returns to Python is not interrupted: ``--isolate`` ends its process. An earlier timer, such as that
    of pytest-timeout, goes on.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGALRM)
    earlier, _ = signal.getitimer(signal.ITIMER_REAL)
    if 0 < earlier <= seconds:
        yield
        return

    def stop(number: int, frame: Any) -> None:
        place = f"{frame.f_code.co_filename}:{frame.f_lineno}, in {frame.f_code.co_name}" if frame else "unknown"
        raise Hung(f"the test hung: it was stopped after {seconds:g} s (--test-limit) at {place}")

    begin = time.monotonic()
    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if earlier:
            signal.setitimer(signal.ITIMER_REAL, max(earlier - (time.monotonic() - begin), 0.01))
