"""Processes that a launcher started do not outlive the process that started them."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import MutableMapping

__all__ = ["LIFELINE", "attach_lifeline", "watch_parent"]

LIFELINE = "CORE_LIFELINE"
"""The variable that tells a process which one started it, by number."""

_POLL_SECONDS = 0.5
_GRACE_SECONDS = 5.0

logger = logging.getLogger(__name__)


def attach_lifeline(environ: MutableMapping[str, str]) -> bool:
    """End this process when the launcher's goes, in whatever way; called with ``os.environ``, as early as can be.

    The variable is taken out of ``environ``. It is heeded only in the process that it was meant for: a program which
    that one starts inherits its variables, but has another parent. Where the launcher is gone already nobody can tell
    the two apart, and either ends. Calling it again does nothing.

    Returns:
        Whether this process is now tied to its parent.
    """
    parent = environ.pop(LIFELINE, "")
    if not parent.isdecimal() or (os.getppid() != int(parent) and _is_alive(int(parent))):
        return False
    watch_parent(int(parent))
    return True


def _is_alive(process: int) -> bool:
    if os.name == "nt":
        return True  # asking there would be a signal
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def watch_parent(parent: int) -> None:
    """End this process as soon as process ``parent`` is no longer its parent.

    The system gives an orphan another parent at once, however its own ended. Unlike a pipe held open, that does not
    depend on which other processes inherited what. On Windows, which keeps the number, nothing is noticed.
    """
    threading.Thread(target=_watch, args=(parent,), name="core-lifeline", daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_POLL_SECONDS)
    logger.error("process %s: ending, because process %s, which started it, is gone", os.getpid(), parent)
    os.kill(os.getpid(), signal.SIGTERM)
    # A handler that only sets a flag leaves a process waiting in a collective where it is.
    time.sleep(_GRACE_SECONDS)
    os._exit(1)
