"""Signals to processes that this one starts while it acts on signals itself: workers of its loaders, and other forks.

A scheduler, or Ctrl-C in a terminal, sends a signal to all processes of a run. A worker that ended by it would end the
run before it has saved.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any

from core.strategies.launchers.forwarding import SAME_SECONDS

__all__ = ["Handled", "iterate"]


class Handled:
    """The handler of a signal that this process acts on elsewhere.

    Args:
        before: The handler before, which a fork of this process gets back.
    """

    def __init__(self, before: Any) -> None:
        self.before = before

    def __call__(self, number: int, frame: object) -> None:
        """Handle it."""


def iterate(loader: Any) -> Iterator[Any]:
    """``iter(loader)``; workers that this starts stay until this process ends them, whatever signals they receive.

    It holds for the signals that this process acts on. The second SIGTERM ends a worker all the same.
    """
    numbers = _handled()
    if not numbers or not getattr(loader, "num_workers", 0) or not hasattr(loader, "worker_init_fn"):
        return iter(loader)
    own = loader.worker_init_fn
    object.__setattr__(loader, "worker_init_fn", _WorkerStart(own, numbers))
    try:
        return iter(loader)
    finally:
        object.__setattr__(loader, "worker_init_fn", own)


def _handled() -> list[int]:
    return [number for number in signal.valid_signals() if isinstance(signal.getsignal(number), Handled)]


class _WorkerStart:
    """A ``worker_init_fn`` that calls the user's own after it has set the handlers.

    Args:
        own: The user's.
        numbers: The signals.
    """

    def __init__(self, own: Callable[[int], object] | None, numbers: Collection[int]) -> None:
        self._own, self._numbers = own, numbers

    def __call__(self, worker_id: int) -> None:
        """Begin the worker."""
        if signal.SIGTERM in self._numbers:
            read, write = os.pipe()
            os.set_blocking(write, False)
            # The system writes there at once, also while the main thread is in C code.
            signal.set_wakeup_fd(write, warn_on_full_buffer=False)
            threading.Thread(target=_end_by_second, args=(read,), name="core-worker-signals", daemon=True).start()
        for number in self._numbers:
            signal.signal(number, Handled(signal.SIG_DFL))
        if self._own is not None:
            self._own(worker_id)


def _end_by_second(pipe: int) -> None:
    """End this worker by the second SIGTERM: its loader sends one to a worker that hangs, and another at exit."""
    first: float | None = None
    while True:
        for number in os.read(pipe, 64):
            if number != signal.SIGTERM:
                continue
            first = first or time.monotonic()
            if time.monotonic() - first > SAME_SECONDS:
                os._exit(0)  # as torch's own handler does: its parent does not report it


_mask = threading.local()


def _block() -> None:
    """Before a fork: a signal to the fork waits until it has its handlers."""
    numbers = _handled()
    _mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, {*numbers, signal.SIGTERM}) if numbers else None


def _unblock() -> None:
    if _mask.before is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _mask.before)


def _give_back() -> None:
    """In a fork: it acts on signals as without this module, and does not write them into this process's pipe."""
    numbers = _handled()
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
