"""The Launcher: starts the processes of a run if nothing else has started them."""

from __future__ import annotations

import math
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from multiprocessing.process import BaseProcess
from subprocess import Popen
from typing import TypeVar

from ...errors import LaunchError
from ..time_limits import wait_until


class Launcher(ABC):
    """Starts the processes of one run on one machine.

    Args:
        num_processes: Number of processes on this machine, including the first.
        environ_for: Returns, for a local rank, the environment variables to add for that process: ``RANK``,
            ``WORLD_SIZE``, ``LOCAL_RANK``, ``LOCAL_WORLD_SIZE``, ``MASTER_ADDR``, ``MASTER_PORT`` and whatever else the
            run needs.
        strategy: Name of the strategy that the user asked for, for error messages.

    Raises:
        LaunchError: ``num_processes`` is less than 1.
    """

    def __init__(self, num_processes: int, environ_for: Callable[[int], Mapping[str, str]], *, strategy: str) -> None:
        if num_processes < 1:
            raise LaunchError(f"num_processes must be an integer ≥ 1; got {num_processes!r}.")
        self.num_processes = num_processes
        self.strategy = strategy
        self._environ_for = environ_for

    @abstractmethod
    def stop(self) -> None:
        """End every process that this launcher started, within a bounded time."""

    def _environ(self, local_rank: int) -> tuple[int, dict[str, str]]:
        """The global rank of a process, and its environment variables."""
        environ = dict(self._environ_for(local_rank))
        return int(environ.get("RANK", local_rank)), environ


ProcessT = TypeVar("ProcessT", BaseProcess, Popen[bytes])


def end_processes(processes: Iterable[ProcessT], is_alive: Callable[[ProcessT], bool], grace: float) -> None:
    """Terminate processes, and kill those that are still running after ``grace`` seconds."""
    running = [process for process in processes if is_alive(process)]
    for process in running:
        process.terminate()
    if not wait_until(lambda: not any(map(is_alive, running)), grace):
        for process in filter(is_alive, running):
            process.kill()
        wait_until(lambda: not any(map(is_alive, running)), math.inf)


def describe_exit(code: int) -> str:
    """An exit code as text: ``exited with code 3``, ``was killed by SIGKILL``."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def advice_on(code: int) -> str:
    """What to do about an exit code of a process that gave no reason; begins with a space, or is empty."""
    if code == -9:
        return (
            " If you did not do that, the system did, because memory was exhausted ('dmesg' says so): use a smaller "
            "batch, or fewer workers."
        )
    # On Linux SIGILL, SIGABRT, SIGBUS, SIGFPE and SIGSEGV.
    if code in (-4, -6, -7, -8, -11):
        return " It crashed in C or C++: set PYTHONFAULTHANDLER=1 to see where."
    return " What it wrote is above." if code > 0 else ""
