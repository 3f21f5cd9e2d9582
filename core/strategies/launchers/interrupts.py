"""Interrupts of started processes: Ctrl-C and other signals, and the end of the process that started them.

While they import the script, Ctrl-C ends them silently, and the process that started them says so: Python would show
the traceback of an import in each. So they start with SIGINT blocked, and core unblocks it when the script has imported
it. Until then, the process that started them ends them by SIGTERM.

Where the system has real-time signals, such a process also blocks SIGRTMAX, which nothing sends. This distinguishes it
from one that blocks SIGINT for a moment: the system does so while a handler of SIGINT runs, and the C library blocks
all signals while it starts a thread.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextlib import contextmanager, suppress
from typing import Any

from ...errors import LaunchError
from ..time_limits import ORPHAN_SECONDS, PARENT_POLL_SECONDS, SAME_SIGNAL_SECONDS
from .cause import print_error
from .exit_codes import exit_status

logger = logging.getLogger(__name__)


IMPORTING = {signal.SIGINT, *([signal.SIGRTMAX] if hasattr(signal, "SIGRTMAX") else [])}
"""The signals that a process blocks while it imports the script, the same as in ``core/run/parent_death.py``."""


@contextmanager
def interrupts_blocked() -> Iterator[None]:
    """A context in which processes are started that do not receive SIGINT before :func:`unblock_interrupts`."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, IMPORTING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def unblock_interrupts() -> None:
    """Receive SIGINT from now on; if it has come meanwhile, this process ends by it, without a traceback."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "pthread_sigmask"):
        return
    if not signal.pthread_sigmask(signal.SIG_BLOCK, ()) >= IMPORTING:
        return
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_default:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, IMPORTING)
    if is_default:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def blocks_interrupts(process: int) -> bool:
    """Whether the process with this ID still imports the script, and so blocks SIGINT; on Linux only."""
    with suppress(OSError, ValueError), open(f"/proc/{process}/status", encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith("SigBlk:"):
                blocked = int(line.split()[1], 16)
                return all(
                    blocked >> (number - 1) & 1 == (number in IMPORTING) for number in (*IMPORTING, signal.SIGTERM)
                )
    return False


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
        if before is not None and last[number] - before < SAME_SIGNAL_SECONDS:
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


LIFELINE = "CORE_LIFELINE"
"""The environment variable with the process ID of the launcher."""


def attach_lifeline(environ: MutableMapping[str, str]) -> bool:
    """End this process when the launcher's process ends, for whatever reason. Call it with ``os.environ``, early.

    The variable is removed from ``environ``. It only has an effect in the process that it is meant for: a program
    that this process starts inherits the variable, but has another parent. If the launcher has already ended, the two
    cannot be distinguished, and both end. Calling this again has no effect.

    Returns:
        Whether this process is now tied to its parent.
    """
    parent = environ.pop(LIFELINE, "")
    if not parent.isdecimal() or (os.getppid() != int(parent) and _is_alive(int(parent))):
        return False
    rank, local_rank = environ.get("RANK", ""), environ.get("LOCAL_RANK", "")
    if rank.isdecimal() and local_rank.isdecimal():
        watch_parent(int(parent), f"rank {rank}", f"rank {int(rank) - int(local_rank)}")
    else:
        watch_parent(int(parent))
    return True


def _is_alive(process: int) -> bool:
    if os.name == "nt":
        return True  # os.kill would end the process there
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


_ended_with: set[tuple[int, int]] = set()


def end_with_launcher(rank: int) -> None:
    """End this process when the one that started it ends, as a launcher that leaves orphans. Again has no effect."""
    this = os.getpid(), os.getppid()
    if this not in _ended_with:
        _ended_with.add(this)
        watch_parent(os.getppid(), f"rank {rank}", "its launcher")


def watch_parent(parent: int, own_name: str = "", parents_name: str = "") -> None:
    """End this process as soon as process ``parent`` is no longer its parent.

    The system gives an orphan another parent at once. Unlike an open pipe, this does not depend on what other
    processes inherited. On Windows, which keeps the parent's ID, it has no effect.

    Args:
        parent: Its process ID.
        own_name: Of this process, such as ``rank 1``, for the message; by default its ID.
        parents_name: The same of the parent.
    """
    own = own_name or f"process {os.getpid()}"
    named = f"{parents_name} (process {parent})" if parents_name else f"process {parent}"
    threading.Thread(target=_watch, args=(parent, own, named), name="core-lifeline", daemon=True).start()


def _watch(parent: int, own: str, named: str) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_POLL_SECONDS)
    logger.error("%s ends because %s, which started it, has ended", own, named)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(ORPHAN_SECONDS)
    os._exit(1)
