"""Ending what torchrun's agent would leave too long: at a second signal, or when one of the processes has failed."""

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
from typing import Any, Self
from unittest import mock

from torch.distributed.elastic.multiprocessing.api import PContext

from ..strategies.launchers.interrupts import blocks_interrupts
from ..strategies.time_limits import LEFT_OVER_SECONDS, SAME_SIGNAL_SECONDS

ENDING = (signal.SIGTERM, signal.SIGINT)


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
                    and time.monotonic() - self._first.setdefault(number, time.monotonic()) > SAME_SIGNAL_SECONDS
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


class LeftOver:
    """A context in which processes that do not end after the failure of another are killed after 8 seconds.

    torchrun's agent would wait 30, and does not tell a process that it has killed from one that was killed before.
    """

    def __init__(self) -> None:
        self._context: PContext | None = None
        self.failed: set[int] = set()
        """The local ranks that had failed when the others were told to end, of the last start."""
        close = PContext.close

        def close_sooner(context: PContext, death_sig: signal.Signals | None = None, timeout: int = 30) -> None:
            if context is not self._context:
                self._context, self.failed = context, _failed(context)
            if death_sig == signal.SIGINT:
                _end_importing(context)
            close(context, death_sig, min(timeout, LEFT_OVER_SECONDS) if self.failed else timeout)

        # The agent has no setting for the time that it gives processes to end.
        self._patch: Any = mock.patch.object(PContext, "close", close_sooner)

    def __enter__(self) -> Self:
        self._patch.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._patch.stop()


def _end_importing(context: PContext) -> None:
    """End the processes that block SIGINT because they still import the script."""
    for process in context.pids().values():
        if blocks_interrupts(process):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGTERM)


def _failed(context: PContext) -> set[int]:
    handlers: dict[int, Any] = getattr(context, "subprocess_handlers", {})
    return {rank for rank, handler in handlers.items() if handler.proc.poll()}
