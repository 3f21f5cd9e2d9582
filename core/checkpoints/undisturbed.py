"""Reading a checkpoint while another process saves to the same path: the old one or the new one, not parts of both."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from core.checkpoints.agreement import run_on_each_rank
from core.checkpoints.commit import locate
from core.checkpoints.manifest import identity
from core.errors import CoreError

__all__ = ["read_together_undisturbed", "read_undisturbed"]

T = TypeVar("T")


def read_undisturbed(path: str | os.PathLike[str], read: Callable[[Path], T]) -> T:
    """What ``read`` returns for the checkpoint's directory; called again if the checkpoint was replaced meanwhile.

    Raises:
        CoreError: From ``read``, of a checkpoint that was not replaced.
    """
    while True:
        before = _state(path)
        try:
            result = read(before[0])
        except CoreError:
            if _state(path) == before:
                raise
        else:
            # It may have been set aside, but it must be the same.
            if _state(path)[1] == before[1]:
                return result


def read_together_undisturbed(
    path: str | os.PathLike[str], verify: Callable[[Path], None], read: Callable[[Path], T]
) -> T:
    """As :func:`read_undisturbed`, called by every process: all read the same checkpoint.

    ``verify`` and then ``read`` are called in every process; an error in one is raised in all.
    """
    while True:
        own = _state(path)
        before = run_on_each_rank(lambda: own)  # noqa: B023  called at once
        results: list[T] = []
        try:
            run_on_each_rank(lambda: verify(own[0]))  # noqa: B023
            run_on_each_rank(lambda: results.append(read(own[0])))  # noqa: B023
        except CoreError:
            if run_on_each_rank(lambda: _state(path)) == before:
                raise
            continue
        after = run_on_each_rank(lambda: _state(path))
        if len({state[1] for state in (*before, *after)}) == 1:
            return results[0]


def _state(path: str | os.PathLike[str]) -> tuple[Path, str | None]:
    """Where the checkpoint is, and which."""
    directory = locate(path)
    return directory, identity(directory)
