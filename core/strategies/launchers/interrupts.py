"""Ctrl-C while started processes import the script: they end in silence, and the process that started them says so.

Python would show the traceback of an import in each. So they start with SIGINT blocked, and core unblocks it when the
script has imported it. Until then, the process that started them ends them by SIGTERM.

Where the system has real-time signals, such a process also blocks SIGRTMAX, which nothing sends. This tells it from one
that blocks SIGINT for a moment: the system does so while a handler of SIGINT runs, and the C library blocks all signals
while it starts a thread.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

__all__ = ["IMPORTING", "blocks_interrupts", "interrupts_blocked", "unblock_interrupts"]

IMPORTING = {signal.SIGINT, *([signal.SIGRTMAX] if hasattr(signal, "SIGRTMAX") else [])}
"""What a process blocks while it imports the script; ``core/run/parent_death.py`` has the same."""


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
