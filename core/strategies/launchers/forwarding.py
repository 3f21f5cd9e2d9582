"""Passing signals of a supervising process on to a process that it started."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from ...errors import LaunchError
from .cause import print_error
from .exit_codes import exit_status
from .interrupts import blocks_interrupts

__all__ = ["SAME_SECONDS", "forwarding"]

SAME_SECONDS = 0.5
"""Within this time, a signal is the same one: a terminal sends it to a whole group, whose launcher forwards it."""

_SIGNALS = [signal.Signals[name] for name in ("SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2") if hasattr(signal, name)]


@contextmanager
def forwarding(processes: Callable[[], Iterable[int | None]]) -> Iterator[None]:
    """A context in which signals to this process go to the first that it started, and the second one ends all.

    Only signals that nothing else handles, and only in the main thread.

    Args:
        processes: Returns the IDs of the processes that are running.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    last: dict[int, float] = {}
    handlers: dict[int, Any] = {}

    def forward(number: int, frame: Any) -> None:
        before, last[number] = last.get(number), time.monotonic()
        if before is not None and last[number] - before < SAME_SECONDS:
            return
        running = [process for process in processes() if process is not None]
        if number == signal.SIGINT and any(map(blocks_interrupts, running)):
            raise KeyboardInterrupt  # they still import the script
        # The first tells the others, if it handles the signal. Another may not yet do so, and would end at once.
        for process in running[: 1 if before is None else None]:
            with suppress(ProcessLookupError):
                os.kill(process, number)
        if before is not None and number in (signal.SIGTERM, signal.SIGINT):
            raise SystemExit(128 + number)

    for name in _SIGNALS:
        if (handler := signal.getsignal(name)) in (signal.SIG_DFL, signal.default_int_handler):
            handlers[name] = handler
            signal.signal(name, forward)
    try:
        yield
    except LaunchError as error:
        _end_as(error, last)
        raise
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _end_as(error: LaunchError, received: Iterable[int]) -> None:
    """End as if this process did the work itself, if ``error`` only says that a process ended by a received signal.

    Another failure, such as of the checkpoint that a signal asked for, is not hidden.
    """
    for number in received:
        if error.exit_code is None or exit_status(error.exit_code) != 128 + number:
            continue
        if number == signal.SIGINT:
            raise KeyboardInterrupt from None
        print_error(f"The run was ended by {signal.Signals(number).name}, which rank {error.rank} did not handle.")
        raise SystemExit(128 + number) from None
