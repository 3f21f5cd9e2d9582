"""Starting this very script once more for each further process."""

from __future__ import annotations

import atexit
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from core.errors import LaunchError
from core.strategies.launchers.base import (
    POLL_SECONDS,
    SETTLE_SECONDS,
    Launcher,
    describe_exit,
    end_processes,
    ended_by_exception,
)
from core.strategies.launchers.lifeline import LIFELINE

__all__ = ["ScriptLauncher"]

logger = logging.getLogger(__name__)


class ScriptLauncher(Launcher):
    """Runs this script again, with the same interpreter, options and arguments, for each local rank from 1.

    Local rank 0 is this process. The others share its standard output and error, have no standard input, and end when
    it ends, however it does: importing this package there sees to that.

    When one of them fails, a watching thread ends the others. This process learns of it by :meth:`check` or
    :meth:`finish`; if it comes to neither within ``grace`` seconds, being stuck in a collective that nobody will
    complete, the thread ends it with a failing exit code.

    Args:
        num_processes: As in :class:`Launcher`.
        environ_for: As in :class:`Launcher`.
        exit_timeout: Seconds that :meth:`finish` waits for the others when all is well.
        grace: Seconds between a failure and the forced end of this process, and between asking another process to end
            and killing it.
    """

    def __init__(
        self,
        num_processes: int,
        environ_for: Callable[[int], Mapping[str, str]],
        *,
        exit_timeout: float = 300.0,
        grace: float = 30.0,
    ) -> None:
        super().__init__(num_processes, environ_for)
        self._exit_timeout = exit_timeout
        self._grace = grace
        self._children: list[_Child] = []
        self._failure: tuple[_Child, int] | None = None
        self._lock = threading.Lock()
        self._main_knows = threading.Event()
        self._stopping = False
        self._process = os.getpid()

    def start(self) -> None:
        """Start the further processes.

        Raises:
            LaunchError: This process runs no script that could be started again, or the system refused.
        """
        command = script_command(sys.orig_argv)
        atexit.register(self._at_exit)
        for local_rank in range(1, self.num_processes):
            rank, environ = self._environ(local_rank)
            environ = {**os.environ, **environ, LIFELINE: str(os.getpid())}
            try:
                process = subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL)
            except OSError as error:
                self.finish(failed=True)
                raise LaunchError(f"rank {rank} could not be started as {command}: {error}") from error
            self._children.append(_Child(rank, process))
        threading.Thread(target=self._watch, name="core-launcher", daemon=True).start()

    def check(self, settle: float = 0.0) -> None:
        """See whether another process has failed.

        Args:
            settle: Seconds to give a failure to show, when an error in this process may be due to it.

        Raises:
            LaunchError: One has: it was killed, or exited with another code than 0.
        """
        deadline = time.monotonic() + settle
        while (failure := self._first_failure()) is None and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS / 4)
        if failure is not None:
            self._main_knows.set()
            raise LaunchError(_describe(*failure))

    def finish(self, failed: bool = False) -> None:
        """See the other processes end; idempotent. An interpreter that exits without it does so at the end.

        Args:
            failed: End them now, because this process has failed; how they fared is then only logged.

        Raises:
            LaunchError: Another process failed, or did not end within the time limit and was ended.
        """
        atexit.unregister(self._at_exit)
        self._main_knows.set()
        deadline = time.monotonic() + (0.0 if failed else self._exit_timeout)
        while self._first_failure() is None and self._alive() and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS / 4)
        failure, late = self._first_failure(), self._alive()
        self.stop()
        self._children.clear()
        if failure is not None and failed:
            logger.error("%s", _describe(*failure))
        elif failure is not None:
            raise LaunchError(_describe(*failure))
        elif late and not failed:
            ranks = ", ".join(str(child.rank) for child in late)
            raise LaunchError(
                f"rank(s) {ranks} did not end within {self._exit_timeout:g} s (exit_timeout) after this process was "
                f"done, and were ended."
            )

    def stop(self) -> None:
        """End the other processes, in bounded time."""
        with self._lock:
            self._stopping = True
        end_processes([child.process for child in self._children], lambda process: process.poll() is None, self._grace)

    def _alive(self) -> list[_Child]:
        return [child for child in self._children if child.process.poll() is None]

    def _first_failure(self) -> tuple[_Child, int] | None:
        with self._lock:
            if self._failure is None and not self._stopping:
                ended = ((child, child.process.poll()) for child in self._children)
                # One that a signal killed can make others exit with an error, hardly the other way round.
                self._failure = min(
                    ((child, code) for child, code in ended if code), key=lambda failure: failure[1], default=None
                )
            return self._failure

    def _watch(self) -> None:
        while not self._main_knows.wait(POLL_SECONDS):
            failure = self._first_failure()
            if failure is None:
                continue
            deadline = time.monotonic() + self._grace
            time.sleep(SETTLE_SECONDS)
            self.stop()
            if not self._main_knows.wait(max(0.0, deadline - time.monotonic())):
                logger.critical("%s This process did not come out within %g s.", _describe(*failure), self._grace)
                _end_now(failure[1])
            return

    def _at_exit(self) -> None:
        if os.getpid() != self._process:  # a fork of it
            return
        try:
            self.finish(failed=ended_by_exception())
        except LaunchError as error:
            logger.critical("%s", error)
            # The exit code of an interpreter that is already exiting cannot be changed in any other way.
            _end_now(self._failure[1] if self._failure else 1)


class _Child(NamedTuple):
    rank: int
    process: subprocess.Popen[bytes]


def _describe(child: _Child, code: int) -> str:
    return (
        f"rank {child.rank} (process {child.process.pid}) {describe_exit(code)}; what it wrote to its standard error "
        f"says more. The other processes of the run are ended."
    )


def _end_now(code: int) -> None:
    """End this process with another's failing exit code, ``128 + n`` where signal n killed that."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(code if code > 0 else 128 - code)


def script_command(argv: Sequence[str]) -> list[str]:
    """The command that runs the script again that an interpreter started as ``argv`` is running.

    Raises:
        LaunchError: It runs none: an interactive session, ``-c``, standard input.
    """
    program, position = _what_python_runs(argv)
    if program in ("a script", "a module") and not hasattr(sys.modules["__main__"], "__file__"):
        program = "an interactive session"
    if program not in ("a script", "a module"):
        raise LaunchError(
            f"strategy='ddp' starts this script once more for each further process, but this is {program}. Valid here: "
            f"strategy='ddp_notebook' (forks), strategy='ddp_spawn' (functions from an importable module), or a script "
            f"file, also under torchrun."
        )
    if program == "a script" and not os.path.exists(argv[position]):
        raise LaunchError(
            f"strategy='ddp' starts {argv[position]!r} once more for each further process, but seen from the current "
            f"directory, {os.getcwd()!r}, there is no such file. Valid: an absolute path to the script, no change of "
            f"directory before the processes start, or torchrun."
        )
    if not sys.executable:
        raise LaunchError("strategy='ddp' needs sys.executable, which this interpreter does not know. Valid: torchrun.")
    return [sys.executable, *argv[1:]]


def _what_python_runs(argv: Sequence[str]) -> tuple[str, int]:
    """What an interpreter started as ``argv`` runs, and where in ``argv`` its name is."""
    position = 1
    while position < len(argv):
        word = argv[position]
        if word == "-":
            return "a script from standard input ('-')", position
        if not word.startswith("-"):
            return "a script", position
        if word == "--check-hash-based-pycs":
            position += 1
        for place, letter in enumerate(word[1:] if not word.startswith("--") else "", start=2):
            if letter == "c":
                return "code given with '-c'", position
            if letter == "m":
                return "a module", position
            if letter in "WX":
                position += place == len(word)
                break
        position += 1
    return "an interactive session", position
