"""Processes that Horovod's launchers started."""

from __future__ import annotations

import os
from collections.abc import Mapping

from core.environments import ClusterEnvironment
from core.environments.variables import LARGEST_PORT, whole_number
from core.errors import ConfigurationError
from torch_hal_horovod.detect import BY_GLOO, BY_MPI, started, started_by_mpi

__all__ = ["HorovodEnvironment"]


class HorovodEnvironment(ClusterEnvironment):
    """Ranks from ``HOROVOD_RANK``, ``HOROVOD_SIZE`` and the like.

    ``horovodrun --gloo``, ``horovod.run`` and the elastic driver set them. Under mpirun the ranks are Open MPI's,
    ``OMPI_COMM_WORLD_RANK`` and so on.
    """

    name = "horovod"

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        super().__init__(environ)
        self.uses_mpi = started_by_mpi(self.environ)
        """Whether mpirun started the processes, so that Horovod's controller is MPI."""
        self.is_elastic = self.environ.get("HOROVOD_ELASTIC") == "1"
        """Whether the elastic driver started them: the numbers may change while they run."""
        self._names = BY_MPI if self.uses_mpi else BY_GLOO

    @staticmethod
    def detect(environ: Mapping[str, str] | None = None) -> bool:
        """Whether this is one of Horovod's processes; mpirun's are only with the word ``HOROVOD_CONTROLLER=mpi``."""
        return started(os.environ if environ is None else environ)

    @property
    def creates_processes_externally(self) -> bool:
        """True: Horovod's launcher started every process."""
        return True

    @property
    def main_address(self) -> str:
        """``MASTER_ADDR``, which a strategy other than ``horovod`` needs; Horovod's processes meet without it.

        Raises:
            ConfigurationError: It is not set.
        """
        address = self.environ.get("MASTER_ADDR")
        if not address:
            raise ConfigurationError(
                "environment variable MASTER_ADDR: not set, and Horovod's launcher names no address to meet at. Valid: "
                "strategy='horovod', which needs none; or MASTER_ADDR and MASTER_PORT, given to every process."
            )
        return address

    @property
    def main_port(self) -> int:
        """``MASTER_PORT``, likewise."""
        return whole_number(self.environ, "MASTER_PORT", low=1, high=LARGEST_PORT)

    @property
    def world_size(self) -> int:
        """``HOROVOD_SIZE``."""
        return whole_number(self.environ, self._names["size"], low=1)

    @property
    def local_world_size(self) -> int:
        """``HOROVOD_LOCAL_SIZE``."""
        return whole_number(self.environ, self._names["local_size"], low=1)

    @property
    def global_rank(self) -> int:
        """``HOROVOD_RANK``."""
        return whole_number(self.environ, self._names["rank"])

    @property
    def local_rank(self) -> int:
        """``HOROVOD_LOCAL_RANK``."""
        return whole_number(self.environ, self._names["local_rank"])

    @property
    def node_rank(self) -> int:
        """``HOROVOD_CROSS_RANK``; under mpirun, which sets no such number, counted by ranks."""
        counted = self.global_rank // self.local_world_size
        return counted if self.uses_mpi else whole_number(self.environ, "HOROVOD_CROSS_RANK", counted)

    def validate_settings(self, processes_per_node: int, num_nodes: int) -> None:
        """Refuse another number of processes or machines than Horovod's launcher gave.

        Raises:
            ConfigurationError: The numbers differ, or the variables contradict each other or are no numbers.
        """
        self._check_ranks()
        if processes_per_node != self.local_world_size:
            raise ConfigurationError(
                f"devices: {processes_per_node} process(es) on this machine asked for, but its launcher started "
                f"{self.local_world_size} ({self._names['local_size']}). Valid: devices={self.local_world_size}, "
                f"devices='auto', or horovodrun -np {processes_per_node * num_nodes}."
            )
        if num_nodes != self.num_nodes:
            raise ConfigurationError(
                f"num_nodes={num_nodes}: the launcher started {self.num_nodes} machine(s) "
                f"({self._names['size']}={self.world_size}, {self._names['local_size']}={self.local_world_size}). "
                f"Valid: num_nodes={self.num_nodes} or 'auto'."
            )

    def _check_ranks(self) -> None:
        rank, size = self.global_rank, self.world_size
        local_rank, local_size, node_rank = self.local_rank, self.local_world_size, self.node_rank
        fault = ""
        if rank >= size or local_rank >= local_size:
            fault = "a rank must be below its size"
        elif size % local_size:
            fault = "every machine must have the same number of processes, as with -H one:2,two:2"
        elif rank != node_rank * local_size + local_rank and not self.is_elastic:
            # The elastic driver keeps the ranks of those that stay, so that they need not count through the machines.
            fault = "ranks must count through the machines, as with mpirun -map-by slot"
        if fault:
            names = self._names
            raise ConfigurationError(
                f"environment variables {names['rank']}={rank}, {names['size']}={size}, "
                f"{names['local_rank']}={local_rank}, {names['local_size']}={local_size}, number of the machine "
                f"{node_rank}: {fault}. Valid: as horovodrun sets them."
            )
