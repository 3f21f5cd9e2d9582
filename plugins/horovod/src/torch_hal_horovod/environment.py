"""Processes started by Horovod's launchers."""

from __future__ import annotations

import os
from collections.abc import Mapping

from torch_hal.environments import LaunchedEnvironment, RankVariables
from torch_hal.errors import ConfigurationError
from torch_hal_horovod.detect import BY_GLOO, BY_MPI, started, started_by_mpi

__all__ = ["HorovodEnvironment"]


class HorovodEnvironment(LaunchedEnvironment):
    """Ranks from ``HOROVOD_RANK``, ``HOROVOD_SIZE`` and so on.

    ``horovodrun --gloo``, ``horovod.run`` and the elastic driver set them. Under mpirun the ranks come from Open MPI,
    ``OMPI_COMM_WORLD_RANK`` and so on.
    """

    name = "horovod"

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        super().__init__(environ)
        self.uses_mpi = started_by_mpi(self.environ)
        """Whether mpirun started the processes: Horovod's controller is then MPI."""
        self.is_elastic = self.environ.get("HOROVOD_ELASTIC") == "1"
        """Whether the elastic driver started them: ranks and world size may change during the run."""
        # The elastic driver keeps the ranks of remaining processes.
        self.ranks_count_through = not self.is_elastic
        names = BY_MPI if self.uses_mpi else BY_GLOO
        # mpirun does not set the node rank.
        self.variables = RankVariables(**names, node_rank=None if self.uses_mpi else "HOROVOD_CROSS_RANK")

    @staticmethod
    def detect(environ: Mapping[str, str] | None = None) -> bool:
        """Whether this is one of Horovod's processes; mpirun's are only recognized with ``HOROVOD_CONTROLLER=mpi``."""
        return started(os.environ if environ is None else environ)

    @property
    def main_address(self) -> str:
        """``MASTER_ADDR``, which strategies other than ``horovod`` need.

        Raises:
            ConfigurationError: It is not set.
        """
        address = self.environ.get("MASTER_ADDR")
        if not address:
            raise ConfigurationError(
                "environment variable MASTER_ADDR is not set, and Horovod's launcher does not set it. Set "
                "strategy='horovod', which does not need it, or pass MASTER_ADDR and MASTER_PORT to every process."
            )
        return address

    def command(self, processes_per_node: int, num_nodes: int) -> str:
        """See :meth:`core.environments.LaunchedEnvironment.command`."""
        hosts = f" -H one:{processes_per_node},two:{processes_per_node},..." if num_nodes > 1 else ""
        if self.uses_mpi:
            return f"mpirun -np {processes_per_node * num_nodes} -map-by slot"
        return f"horovodrun -np {processes_per_node * num_nodes}{hosts}"
