"""MPI: processes that ``mpirun`` or ``mpiexec`` started, of Open MPI or MPICH."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ..errors import ConfigurationError
from .base import LARGEST_PORT, LAUNCHED, LaunchedEnvironment, RankVariables, port_of, whole_number

_DEFAULT_PORT = 29500


class _MPIEnvironment(LaunchedEnvironment):
    """Ranks from MPI's launcher, which tells no address: ``MASTER_ADDR`` must be set on several machines."""

    advice = "ranks are consecutive with --map-by slot"

    @property
    def local_rank(self) -> int:
        """Rank of this process on its machine; on one machine the global rank.

        Open MPI 5 counts processes on one machine in another order if there are more of them than cores.
        """
        local_rank = super().local_rank
        return self.global_rank if local_rank < self.local_world_size == self.world_size else local_rank

    @property
    def main_address(self) -> str:
        """``MASTER_ADDR``; the loopback address on one machine."""
        address = self.environ.get("MASTER_ADDR", "")
        if not address and self.num_nodes > 1:
            raise ConfigurationError(
                f"cluster_environment={self.name!r} needs the environment variable MASTER_ADDR on several machines "
                f"({self.variables.size}={self.world_size}, {self.variables.local_size}={self.local_world_size}). Set "
                f"it to the host name of rank 0 for all processes: {self._export('MASTER_ADDR=<host>')}"
            )
        return address or "127.0.0.1"

    def _export(self, setting: str) -> str:
        """The option that sets a variable in all processes."""
        return f"mpiexec -genv {setting.replace('=', ' ')}"

    def command(self, processes_per_node: int, num_nodes: int) -> str:
        """See :meth:`LaunchedEnvironment.command`."""
        return f"mpirun -n {processes_per_node * num_nodes}"


class OpenMPIEnvironment(_MPIEnvironment):
    """Ranks from Open MPI's ``OMPI_COMM_WORLD_*``."""

    name = "openmpi"
    variables = RankVariables(
        *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")
    )

    @staticmethod
    def detect(environ: Mapping[str, str] | None = None) -> bool:
        """Whether Open MPI started several processes."""
        environ = os.environ if environ is None else environ
        return LAUNCHED not in environ and whole_number(environ, "OMPI_COMM_WORLD_SIZE", 1) > 1

    @property
    def main_port(self) -> int:
        """``MASTER_PORT``; otherwise a number from 20000 to 31999 that follows from Open MPI's number of the job."""
        job = self.environ.get("PMIX_NAMESPACE") or self.environ.get("OMPI_MCA_ess_base_jobid", "")
        default = port_of(job) if job else _DEFAULT_PORT
        return whole_number(self.environ, "MASTER_PORT", default, low=1, high=LARGEST_PORT)

    def _export(self, setting: str) -> str:
        return f"mpirun -x {setting}"


class MPICHEnvironment(_MPIEnvironment):
    """Ranks from ``PMI_RANK``, ``PMI_SIZE``, ``MPI_LOCALRANKID`` and ``MPI_LOCALNRANKS``."""

    name = "mpich"
    variables = RankVariables("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")

    @staticmethod
    def detect(environ: Mapping[str, str] | None = None) -> bool:
        """Whether MPICH's launcher, or one with the same variables, has started several processes.

        In a job of SLURM they also have the variables of the task that started them; ``srun --mpi=pmi2`` sets
        ``PMI_SIZE``, but no ``MPI_LOCALRANKID``.
        """
        environ = os.environ if environ is None else environ
        return LAUNCHED not in environ and "MPI_LOCALRANKID" in environ and whole_number(environ, "PMI_SIZE", 1) > 1

    @property
    def main_port(self) -> int:
        """``MASTER_PORT``; 29500 if it is not set."""
        return whole_number(self.environ, "MASTER_PORT", _DEFAULT_PORT, low=1, high=LARGEST_PORT)
