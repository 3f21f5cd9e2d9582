"""Signals to processes that this one starts while it acts on signals itself: workers of its loaders, and other forks.

A scheduler, or Ctrl-C in a terminal, sends a signal to all processes of a run. A worker that ended by it would end the
run before it has saved: see :mod:`core.data.workers`.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

__all__ = ["Handled", "handled_signals"]


class Handled:
    """The handler of a signal that this process acts on elsewhere.

    Args:
        before: The handler before, which a fork of this process gets back.
    """

    def __init__(self, before: Any) -> None:
        self.before = before

    def __call__(self, number: int, frame: object) -> None:
        """Handle it."""


def handled_signals() -> list[int]:
    """The signals that this process acts on elsewhere."""
    return [number for number in signal.valid_signals() if isinstance(signal.getsignal(number), Handled)]


_mask = threading.local()


def _block() -> None:
    """Before a fork: a signal to the fork waits until it has its handlers."""
    numbers = handled_signals()
    _mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, {*numbers, signal.SIGTERM}) if numbers else None


def _unblock() -> None:
    if _mask.before is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _mask.before)


def _give_back() -> None:
    """In a fork: it acts on signals as without this module, and does not write them into this process's pipe."""
    numbers = handled_signals()
    for number in numbers:
        handler: Any = signal.getsignal(number)
        while isinstance(handler, Handled):
            handler = handler.before
        signal.signal(number, handler)
    if numbers:
        signal.set_wakeup_fd(-1)
    _unblock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_block, after_in_parent=_unblock, after_in_child=_give_back)
