"""This process's rank before any run exists, from the variables that its launcher has set."""

from __future__ import annotations

from collections.abc import Mapping

from .detect import LAUNCHED, TORCHRUN_VARIABLES, kubeflow, lsf, mpich, openmpi, plain, slurm, slurm_tasks
from .inherited import ranks_environ
from .variables import whole_number

__all__ = ["launched_ranks"]


def launched_ranks(environ: Mapping[str, str] | None = None) -> tuple[int, int]:
    """Rank and world size that a launcher has given to this process; ``(0, 1)`` without one.

    Args:
        environ: The environment variables; by default this process's.
    """
    environ = ranks_environ() if environ is None else environ
    is_torchruns = LAUNCHED in environ or all(name in environ for name in TORCHRUN_VARIABLES)
    if is_torchruns or kubeflow(environ):
        return whole_number(environ, "RANK"), whole_number(environ, "WORLD_SIZE", low=1)
    if lsf(environ):
        return whole_number(environ, "JSM_NAMESPACE_RANK"), whole_number(environ, "JSM_NAMESPACE_SIZE")
    if openmpi(environ):
        return whole_number(environ, "OMPI_COMM_WORLD_RANK"), whole_number(environ, "OMPI_COMM_WORLD_SIZE")
    if mpich(environ):
        return whole_number(environ, "PMI_RANK"), whole_number(environ, "PMI_SIZE")
    if slurm(environ):
        return whole_number(environ, "SLURM_PROCID"), slurm_tasks(environ)
    if plain(environ):
        return whole_number(environ, "RANK"), whole_number(environ, "WORLD_SIZE")
    return 0, 1
