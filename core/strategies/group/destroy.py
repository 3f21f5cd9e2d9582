"""Destroying the process group, also while a collective is in progress that others do not join."""

from __future__ import annotations

import faulthandler
import logging
import threading
from collections.abc import Callable
from typing import TypeVar
from weakref import ref

import torch.distributed as dist

__all__ = ["ABANDON_SECONDS", "abandon", "destroy", "while_alive"]

# Destroying the group takes much less, unless a collective is in progress.
ABANDON_SECONDS = 5.0

T = TypeVar("T")

logger = logging.getLogger(__name__)


def destroy() -> None:
    """Destroy the process group.

    A gloo thread frees a collective's tensors some time after the collective has returned, and needs the interpreter
    for it: if the interpreter is exiting by then, the process ends with SIGABRT. Destroying the group before waits for
    the threads to end, provided that nothing else holds the group.
    """
    if dist.is_initialized():
        dist.destroy_process_group()


def abandon(exiting: bool) -> None:
    """Destroy the process group without waiting for long.

    If a collective is in progress that others do not join, destroying the group takes as long as the collective's
    time limit, in C++, where no exception can interrupt it.
    """
    if exiting:  # no thread can be started any more
        # Its watchdog runs in C, and ends the process even while this thread is blocked there.
        faulthandler.dump_traceback_later(ABANDON_SECONDS, exit=True, file=2)
        destroy()
        faulthandler.cancel_dump_traceback_later()
        return
    thread = threading.Thread(target=destroy, name="core-abandon", daemon=True)
    thread.start()
    thread.join(ABANDON_SECONDS)
    if thread.is_alive():
        logger.warning("a collective that other ranks do not join is still in progress; it ends at its time limit")


def while_alive(holder: T, release: Callable[[T], object]) -> Callable[[], None]:
    """A function that calls ``release(holder)``, if ``holder`` still exists; it does not keep ``holder`` alive."""
    reference = ref(holder)

    def release_it() -> None:
        alive = reference()
        if alive is not None:
            release(alive)

    return release_it
