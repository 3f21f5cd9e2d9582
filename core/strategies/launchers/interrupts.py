"""Ctrl-C while started processes import the script: they end in silence, and the process that started them says so.

Python would show the traceback of an import in each. So they start with SIGINT blocked, and core unblocks it when the
script has imported it. Until then, the process that started them ends them by SIGTERM.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

__all__ = ["blocks_interrupts", "interrupts_blocked", "unblock_interrupts"]


@contextmanager
def interrupts_blocked() -> Iterator[None]:
    """A context in which processes are started that do not receive SIGINT before :func:`unblock_interrupts`."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def unblock_interrupts() -> None:
    """Receive SIGINT from now on; if it has come meanwhile, this process ends by it, without a traceback."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "pthread_sigmask"):
        return
    if signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ()):
        return
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_default:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    if is_default:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def blocks_interrupts(process: int) -> bool:
    """Whether the process with this ID blocks SIGINT, as one that still imports the script; on Linux only.

    The C library blocks all signals for a moment while it starts a thread or a process: that is not meant.
    """
    with suppress(OSError, ValueError), open(f"/proc/{process}/status", encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith("SigBlk:"):
                blocked = int(line.split()[1], 16)
                return [blocked >> (number - 1) & 1 for number in (signal.SIGINT, signal.SIGTERM)] == [1, 0]
    return False
