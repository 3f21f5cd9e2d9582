"""Whether Horovod started this process, from environment variables alone."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["BY_GLOO", "BY_MPI", "started", "started_by_mpi"]

BY_GLOO = {
    "rank": "HOROVOD_RANK",
    "size": "HOROVOD_SIZE",
    "local_rank": "HOROVOD_LOCAL_RANK",
    "local_size": "HOROVOD_LOCAL_SIZE",
}
"""Variables that ``horovodrun --gloo``, ``horovod.run`` and the elastic driver set."""

BY_MPI = {
    "rank": "OMPI_COMM_WORLD_RANK",
    "size": "OMPI_COMM_WORLD_SIZE",
    "local_rank": "OMPI_COMM_WORLD_LOCAL_RANK",
    "local_size": "OMPI_COMM_WORLD_LOCAL_SIZE",
}
"""Variables that Open MPI's ``mpirun`` sets."""


def started(environ: Mapping[str, str]) -> bool:
    """Whether this is one of Horovod's processes; mpirun's are only recognized with ``HOROVOD_CONTROLLER=mpi``."""
    if all(name in environ for name in BY_GLOO.values()):
        return True
    return started_by_mpi(environ) and environ.get("HOROVOD_CONTROLLER", "").lower() == "mpi"


def started_by_mpi(environ: Mapping[str, str]) -> bool:
    """Whether mpirun set the ranks."""
    return "HOROVOD_RANK" not in environ and all(name in environ for name in BY_MPI.values())
