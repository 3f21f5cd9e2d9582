"""Starting the user's script again for each further process."""

from __future__ import annotations

import atexit
import errno
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing import process as multiprocess
from typing import NamedTuple

from ...errors import LaunchError
from ..time_limits import FAILED_TOO_SECONDS, PROCESS_POLL_SECONDS, wait_until
from .base import Launcher, advice_on, describe_exit, end_processes
from .cause import CAUSE, causes_in, is_interactive, print_error, tell_also
from .exit_codes import agreed_exit_code, ended_by_failure, exit_status, note_exits, show_launch_errors
from .interrupts import LIFELINE, interrupts_blocked

logger = logging.getLogger(__name__)


class ScriptLauncher(Launcher):
    """Runs this script again, with the same interpreter, options and arguments, for each local rank ≥ 1.

    Local rank 0 is this process. The others start in the directory in which it started, whatever directory the script
    has changed to since: they run the script from its beginning. They share its standard output and error and have no
    standard input. They end when this process ends, for whatever reason (see
    :mod:`core.strategies.launchers.interrupts`).

    If one of them fails, a watching thread ends the others. This process learns of it in :meth:`check` or
    :meth:`finish`. If it calls neither within ``grace`` seconds, because it is blocked in a collective that cannot
    complete, the thread ends it with a failing exit code.

    Args:
        num_processes: As in :class:`Launcher`.
        environ_for: As in :class:`Launcher`.
        strategy: As in :class:`Launcher`.
        exit_timeout: Seconds that :meth:`finish` waits for the other processes if none has failed.
        grace: Seconds between a failure and the forced end of this process, and between terminating and killing
            another process.
    """

    def __init__(
        self,
        num_processes: int,
        environ_for: Callable[[int], Mapping[str, str]],
        *,
        strategy: str,
        exit_timeout: float = 300.0,
        grace: float = 5.0,
    ) -> None:
        super().__init__(num_processes, environ_for, strategy=strategy)
        self._exit_timeout = exit_timeout
        self._grace = grace
        self._children: list[_Child] = []
        self._failure: tuple[_Child, int] | None = None
        self._lock = threading.Lock()
        self._main_knows = threading.Event()
        self._stopping = False
        self._process = os.getpid()
        self._causes: list[str] = []
        self._pipe = -1

    def start(self) -> None:
        """Start the further processes.

        Raises:
            LaunchError: This process runs no script that could be started again, or a process could not be started.
        """
        command = script_command(sys.orig_argv, self.strategy)
        if not is_interactive():
            show_launch_errors()
            note_exits()  # the others wait for this process, also before they have joined
            tell_also(self._causes.append, self._say_cause)  # it ends last
        atexit.register(self._at_exit)
        self._pipe, written = os.pipe()
        os.set_blocking(self._pipe, False)  # _say_cause takes what is there: the others hold the other end
        try:
            with interrupts_blocked():
                for local_rank in range(1, self.num_processes):
                    self._children.append(self._start(command, local_rank, written))
        finally:
            os.close(written)
        threading.Thread(target=self._watch, name="core-launcher", daemon=True).start()

    def _start(self, command: Sequence[str], local_rank: int, pipe: int) -> _Child:
        rank, environ = self._environ(local_rank)
        environ = {**os.environ, **environ, LIFELINE: str(os.getpid())}
        passed: tuple[int, ...] = ()
        if os.name != "nt":
            environ[CAUSE], passed = f"/dev/fd/{pipe}", (pipe,)
        try:
            process = subprocess.Popen(
                command, env=environ, cwd=start_directory(), stdin=subprocess.DEVNULL, pass_fds=passed
            )
            return _Child(rank, process)
        except OSError as error:
            self.finish(failed=True)
            raise LaunchError(
                f"strategy={self.strategy!r} could not start rank {rank}: {error}.{_advice(error, environ)} "
                f"Command: {command}"
            ) from error

    def check(self, settle: float = 0.0) -> None:
        """Raise if another process has failed.

        Args:
            settle: Seconds to wait for a failure to show, if it may be the cause of an error in this process.

        Raises:
            LaunchError: A process was killed or exited with a code other than 0.
        """
        failure = wait_until(self._first_failure, settle)
        if failure is not None:
            self._main_knows.set()
            raise _error(*failure)

    def finish(self, failed: bool = False) -> None:
        """Wait until the other processes have ended. Idempotent; called at the interpreter's exit at the latest.

        Args:
            failed: End them now, because this process has failed. Their own failures are then only logged.

        Raises:
            LaunchError: Another process failed, or did not end within ``exit_timeout`` and was ended.
        """
        atexit.unregister(self._at_exit)
        self._main_knows.set()
        wait_until(lambda: self._first_failure() or not self._alive(), 0.0 if failed else self._exit_timeout)
        failure, late = self._first_failure(), self._alive()
        self.stop()
        self._children.clear()
        if failure is not None and failed:
            logger.debug("%s", _describe(*failure))
        elif failure is not None:
            raise _error(*failure)
        elif late and not failed:
            ranks = ", ".join(str(child.rank) for child in late)
            raise LaunchError(
                f"rank(s) {ranks} did not end within {self._exit_timeout:g} s (exit_timeout) after this process had "
                f"finished, and were ended."
            )

    def stop(self) -> None:
        """End the other processes, within a bounded time."""
        with self._lock:
            self._stopping = True
        end_processes([child.process for child in self._children], lambda process: process.poll() is None, self._grace)

    def _alive(self) -> list[_Child]:
        return [child for child in self._children if child.process.poll() is None]

    def _first_failure(self) -> tuple[_Child, int] | None:
        with self._lock:
            if self._failure is None and not self._stopping:
                ended = ((child, child.process.poll()) for child in self._children)
                failed = [(child, code) for child, code in ended if code and code != agreed_exit_code()]
                # A process killed by a signal makes others exit with an error; the reverse is unlikely.
                self._failure = min(failed, key=lambda failure: failure[1], default=None)
            return self._failure

    def _watch(self) -> None:
        while not self._main_knows.wait(PROCESS_POLL_SECONDS):
            failure = self._first_failure()
            if failure is None:
                continue
            deadline = time.monotonic() + self._grace
            time.sleep(FAILED_TOO_SECONDS)
            self.stop()
            if not self._main_knows.wait(max(0.0, deadline - time.monotonic())):
                logger.critical("this process was still blocked after %g s and is ended", self._grace)
                self._say_cause(_describe(*failure))
                _end_now(failure[1])
            return

    def _say_cause(self, other: str = "") -> None:
        """Write why the run failed: the causes that processes reported, or else what this one knows of the others."""
        text = ""
        with suppress(OSError):  # no one has written
            text = os.read(self._pipe, 1 << 20).decode(errors="replace")
        for cause in causes_in(text) or self._causes[:1] or filter(None, [other]):
            print_error(cause)

    def _at_exit(self) -> None:
        if os.getpid() != self._process:  # a fork of it
            return
        failed = ended_by_failure()
        try:
            self.finish(failed)
        except LaunchError as error:
            self._say_cause(str(error))
            # An interpreter that is already exiting can change its exit code in no other way.
            _end_now(self._failure[1] if self._failure else 1)
        if failed:
            self._say_cause()


class _Child(NamedTuple):
    rank: int
    process: subprocess.Popen[bytes]


def _error(child: _Child, code: int) -> LaunchError:
    error = LaunchError(_describe(child, code))
    error.rank, error.exit_code = child.rank, code
    return error


def _describe(child: _Child, code: int) -> str:
    return f"rank {child.rank} (process {child.process.pid}) {describe_exit(code)}.{advice_on(code)}"


def _end_now(code: int) -> None:
    """End this process with another's failing exit code; see :func:`exit_status`."""
    # os._exit does not flush them.
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(exit_status(code))


def start_directory() -> str:
    """The directory in which this process began; Python's spawn starts processes there as well.

    ``multiprocessing`` notes it when it is imported, at the latest by torch; ``None`` if there was no such directory.
    """
    noted: str | None = multiprocess.ORIGINAL_DIR  # type: ignore[attr-defined]  # typeshed leaves it out
    return noted or os.getcwd()


def script_command(argv: Sequence[str], strategy: str) -> list[str]:
    """The command that runs this process's script again.

    Args:
        argv: What this interpreter was started as, ``sys.orig_argv``.
        strategy: Name of the strategy that the user asked for.

    Raises:
        LaunchError: There is no script to start again: an interactive session, ``-c``, standard input.
    """
    if getattr(sys, "frozen", False):  # a program that has no interpreter, and so no script
        return [sys.executable, *argv[1:]]
    asked = f"strategy={strategy!r} starts this script again for each further process"
    program, position = _what_python_runs(argv)
    if program in ("a script", "a module") and not hasattr(sys.modules["__main__"], "__file__"):
        program = "an interactive session"
    if program not in ("a script", "a module"):
        raise LaunchError(
            f"{asked}, but this is {program}. Set start_method='fork' on the strategy (in notebooks; by name: "
            "strategy='ddp_notebook') or start_method='spawn' (for functions of an importable module; by name: "
            "strategy='ddp_spawn'); or run a script file, also under torchrun."
        )
    if program == "a script" and not os.path.exists(os.path.join(start_directory(), argv[position])):
        raise LaunchError(
            f"{asked}, but there is no such file as {argv[position]!r} in the directory {start_directory()!r}. Start "
            "the script by its absolute path or with torchrun, or change the directory only after the imports."
        )
    if not sys.executable:
        raise LaunchError(f"{asked}, but sys.executable is not set. Start the processes with torchrun.")
    return [sys.executable, *argv[1:]]


_LARGEST_VARIABLE = 100_000
"""Linux limits one variable to 128 KiB, and all of them with the arguments to about 2 MiB."""


def _advice(error: OSError, environ: Mapping[str, str]) -> str:
    name = max(environ, key=lambda name: len(environ[name]))
    if error.errno != errno.E2BIG or len(environ[name]) < _LARGEST_VARIABLE:
        return ""
    return f" Environment variable {name} is too long ({len(environ[name])} characters): unset or shorten it."


def _what_python_runs(argv: Sequence[str]) -> tuple[str, int]:
    """What an interpreter started as ``argv`` runs, and where in ``argv`` its name is."""
    position = 1
    while position < len(argv):
        argument = argv[position]
        if argument == "-":
            return "a script from standard input ('-')", position
        if not argument.startswith("-"):
            return "a script", position
        # The one long option whose value is the next argument.
        if argument == "--check-hash-based-pycs":
            position += 1
        for place, letter in enumerate(argument[1:] if not argument.startswith("--") else "", start=2):
            if letter == "c":
                return "code given with '-c'", position
            if letter == "m":
                return "a module", position
            if letter in "WX":  # their value is the rest of the argument, or the next one
                position += place == len(argument)
                break
        position += 1
    return "an interactive session", position
