"""Ending the processes that a launcher started when the launcher's own process ends."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import MutableMapping

__all__ = ["LIFELINE", "attach_lifeline", "end_with_launcher", "watch_parent"]

LIFELINE = "CORE_LIFELINE"
"""The environment variable with the process ID of the launcher."""

_POLL_SECONDS = 0.5
_GRACE_SECONDS = 5.0

logger = logging.getLogger(__name__)


def attach_lifeline(environ: MutableMapping[str, str]) -> bool:
    """End this process when the launcher's process ends, for whatever reason. Call it with ``os.environ``, early.

    The variable is removed from ``environ``. It only has an effect in the process that it is meant for: a program
    that this process starts inherits the variable, but has another parent. If the launcher has already ended, the two
    cannot be told apart, and both end. Calling this again has no effect.

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
        time.sleep(_POLL_SECONDS)
    logger.error("%s ends because %s, which started it, has ended", own, named)
    os.kill(os.getpid(), signal.SIGTERM)
    # A signal handler that only sets a flag does not interrupt a collective.
    time.sleep(_GRACE_SECONDS)
    os._exit(1)
