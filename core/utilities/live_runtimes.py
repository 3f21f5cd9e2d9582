"""The Runtimes of this process, for functions that are given none: ``get_logger``, ``find_executable_batch_size``.

They are referred to weakly. Such a function reads from the last one which process this is, and waits with it for the
others; no setting passes from one Runtime to another here.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

__all__ = ["last_run", "note_run", "remove_run"]

_runs: WeakKeyDictionary[Any, None] = WeakKeyDictionary()
"""The Runtimes of this process that were not torn down, the last one at the end."""


def note_run(run: Any) -> None:
    """Take ``run`` for the last one; a Runtime calls this when it is made, and when its processes have started."""
    _runs.pop(run, None)
    _runs[run] = None


def remove_run(run: Any) -> None:
    """Forget ``run``, which was torn down."""
    _runs.pop(run, None)


def last_run() -> Any:
    """The last Runtime that was made or started, and not torn down; ``None`` without one."""
    return next(reversed([*_runs]), None)
