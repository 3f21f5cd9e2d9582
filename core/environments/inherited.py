"""Ranks belong to the process that was launched with them, not to the programs that this process starts.

Environment variables are inherited. The first process that uses ranks notes its process ID with a checksum of them. One
that finds the note of another process for the same ranks has inherited them, and does without.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import zlib
from collections.abc import MutableMapping

from .detect import LAUNCHED, TORCHRUN_VARIABLES

__all__ = ["OWNER", "own_environ", "ranks_environ"]

OWNER = "CORE_RANKS_OF"
"""The process to which the ranks belong, and their checksum."""

_RANKS = (
    LAUNCHED,
    "RANK",
    "NODE_RANK",
    "SLURM_PROCID",
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "PMIX_RANK",
    "JSM_NAMESPACE_RANK",
)
_ALL = (
    *(
        *_RANKS,
        *TORCHRUN_VARIABLES,
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
        "ROLE_RANK",
        "ROLE_WORLD_SIZE",
    ),
    *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_USE_AGENT_STORE"),
    *("SLURM_LOCALID", "SLURM_NODEID", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"),
    *("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE"),
    *("JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_LOCAL_SIZE"),
    *("PMI_SIZE", "PMI_FD", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)

logger = logging.getLogger(__name__)


def own_environ(environ: MutableMapping[str, str] = os.environ) -> dict[str, str]:
    """A copy of this process's environment variables, without ranks that belong to the process that started it.

    If the ranks are this process's, it notes that in ``environ``.
    """
    owner, ranks = _owner(environ)
    if owner == os.getpid() or not ranks:
        return dict(environ)
    if owner is None:
        environ[OWNER] = f"{os.getpid()}/{ranks}"
        return dict(environ)
    logger.warning(
        "this process was started by a process of a run (process %s), whose ranks it inherited. They are ignored: this "
        "is a run of its own. If it is to take that process's place, unset %s.",
        owner,
        OWNER,
    )
    return _without_ranks(environ)


def ranks_environ() -> dict[str, str]:
    """As :func:`own_environ`, for what only labels or seeds: workers of multiprocessing belong to their process."""
    owner, ranks = _owner(os.environ)
    is_other = ranks and owner not in (None, os.getpid())
    return _without_ranks(os.environ) if is_other and multiprocessing.parent_process() is None else dict(os.environ)


def _owner(environ: MutableMapping[str, str]) -> tuple[int | None, str]:
    """The process to which the ranks belong, if it is known; and a checksum of the ranks, empty without any."""
    if not any(name in environ for name in _RANKS):
        return None, ""
    found = "\n".join(f"{name}={environ[name]}" for name in sorted(set(_ALL)) if name in environ)
    checksum = f"{zlib.crc32(found.encode(errors='surrogateescape')):08x}"
    process, _, noted = environ.get(OWNER, "").partition("/")
    return (int(process) if noted == checksum and process.isdecimal() else None), checksum


def _without_ranks(environ: MutableMapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name not in (*_ALL, OWNER)}
