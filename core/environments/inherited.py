"""Ranks belong to the process that was launched with them, not to the programs that this process starts.

Environment variables are inherited. The process that uses ranks notes its process ID, the names of all variables that
belong to one process, and a checksum of their values. One that finds the note of another process, and the same values,
has inherited them, and does without; it needs to know no launcher.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import zlib
from collections.abc import Iterable, Mapping, MutableMapping

__all__ = ["OWNER", "claim_ranks", "own_environ", "ranks_environ"]

OWNER = "CORE_RANKS_OF"
"""The process to which the ranks belong, their checksum, and the names of the variables, divided by slashes."""

logger = logging.getLogger(__name__)


def own_environ(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """A copy of this process's environment variables, without ranks that belong to the process that started it."""
    owner, names = _owner(environ)
    if owner in (None, os.getpid()):
        return dict(environ)
    logger.warning(
        "this process was started by a process of a run (process %s), whose ranks it inherited. They are ignored: this "
        "is a run of its own. If it is to take that process's place, unset %s.",
        owner,
        OWNER,
    )
    return _without(names, environ)


def ranks_environ() -> dict[str, str]:
    """Like :func:`own_environ`, for what only labels or seeds: workers of multiprocessing belong to their process."""
    owner, names = _owner(os.environ)
    is_own = owner in (None, os.getpid()) or multiprocessing.parent_process() is not None
    return dict(os.environ) if is_own else _without(names, os.environ)


def claim_ranks(ranks: Iterable[str], names: Iterable[str], environ: MutableMapping[str, str] = os.environ) -> None:
    """Note in ``environ`` that the ranks are this process's, if it has any that it has not inherited.

    Args:
        ranks: The variables of which each makes this process a rank.
        names: All variables that belong to one process, ``ranks`` included.
        environ: The environment variables of this process.
    """
    owner, noted = _owner(environ)
    is_inherited = owner not in (None, os.getpid())
    if any(name in environ and not (is_inherited and name in noted) for name in ranks):
        names = sorted({*noted, *names})
        environ[OWNER] = f"{os.getpid()}/{_checksum(names, environ)}/{','.join(names)}"


def _owner(environ: Mapping[str, str]) -> tuple[int | None, list[str]]:
    """The process that has noted the ranks and the names of the variables; ``None`` if they have changed since."""
    process, checksum, names = (*environ.get(OWNER, "").split("/", 2), "", "")[:3]
    noted = names.split(",") if names else []
    is_theirs = process.isascii() and process.isdecimal() and checksum == _checksum(noted, environ)
    return (int(process) if is_theirs else None), noted


def _checksum(names: Iterable[str], environ: Mapping[str, str]) -> str:
    found = "\n".join(f"{name}={environ[name]}" for name in names if name in environ)
    return f"{zlib.crc32(found.encode(errors='surrogateescape')):08x}"


def _without(names: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name not in {*names, OWNER}}
