"""A second signal to ``torch-hal run`` ends it at once: torchrun's agent would wait for its processes again."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import TracebackType
from typing import Self

__all__ = ["SecondSignal"]

ENDING = (signal.SIGTERM, signal.SIGINT)
SAME_SECONDS = 0.5
"""Within this time, a signal is the same one: some programs send it to a process and again to its group."""


class SecondSignal:
    """A context in which the second SIGTERM, or the second SIGINT, kills the started processes and ends this one.

    It acts in a thread, so that it does not matter where the main thread waits. Outside of the main thread the context
    does nothing, as Python's signals go to that one.

    Args:
        processes: Tells which processes to kill.
        folder: Of temporary files, to remove.
        program: How the user called this command, for the message.
    """

    def __init__(self, processes: Callable[[], Iterable[int]], folder: str, program: str) -> None:
        self._processes, self._folder, self._program = processes, folder, program
        self._first: dict[int, float] = {}
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._read, self._write = os.pipe()
            os.set_blocking(self._write, False)
            # The system writes the signal's number there at once; handlers of the agent raise in the main thread.
            self._before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
            self._thread = threading.Thread(target=self._watch, name="core-second-signal", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is not None:
            signal.set_wakeup_fd(self._before)
            os.write(self._write, b"\0")  # no signal has this number: it ends the thread
            self._thread.join()
            os.close(self._read)
            os.close(self._write)

    def _watch(self) -> None:
        while True:
            for number in os.read(self._read, 64):
                if number == 0:
                    return
                if (
                    number in ENDING
                    and time.monotonic() - self._first.setdefault(number, time.monotonic()) > SAME_SECONDS
                ):
                    self._end(number)

    def _end(self, number: int) -> None:
        for process in self._processes():
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL if hasattr(signal, "SIGKILL") else signal.SIGTERM)
        shutil.rmtree(self._folder, ignore_errors=True)
        name = signal.Signals(number).name
        sys.stderr.write(f"{self._program}: a second {name} ends this process and those that it started at once\n")
        sys.stderr.flush()
        os._exit(128 + number)
