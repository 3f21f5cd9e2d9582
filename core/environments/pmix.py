"""Tasks of SLURM that ``srun --mpi=pmix`` started."""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping

from ..errors import ConfigurationError
from .external import RankVariables
from .slurm import SlurmEnvironment
from .variables import LARGEST_PORT, whole_number

__all__ = ["PMIxEnvironment"]


class PMIxEnvironment(SlurmEnvironment):
    """The rank from ``PMIX_RANK``; what PMIx does not put into variables, such as the number of tasks, from SLURM's.

    Other launchers with PMIx set variables of their own, such as Open MPI's ``OMPI_COMM_WORLD_*``.
    """

    name = "pmix"
    variables = RankVariables(
        "PMIX_RANK", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE", "SLURM_NODEID"
    )

    @staticmethod
    def detect(environ: Mapping[str, str] | None = None) -> bool:
        """Whether SLURM has started several tasks and told them their ranks by PMIx."""
        environ = os.environ if environ is None else environ
        return "PMIX_RANK" in environ and SlurmEnvironment.detect(environ)

    @property
    def main_port(self) -> int:
        """``MASTER_PORT``; otherwise a number from 20000 to 31999 that follows from PMIx's name of the step."""
        name = self.environ.get("PMIX_NAMESPACE", "")
        default = 20000 + zlib.crc32(os.fsencode(name)) % 12000 if name else super().main_port
        return whole_number(self.environ, "MASTER_PORT", default, low=1, high=LARGEST_PORT)

    def command(self, processes_per_node: int, num_nodes: int) -> str:
        """See :meth:`LaunchedEnvironment.command`."""
        return f"srun --mpi=pmix --nodes={num_nodes} --ntasks-per-node={processes_per_node}"

    def validate_settings(self, processes_per_node: int, num_nodes: int) -> None:
        """Reject numbers other than the step's, and ranks of which PMIx and SLURM say different things.

        Raises:
            ConfigurationError: The numbers differ, or the two ranks do.
        """
        rank, task = self.global_rank, whole_number(self.environ, "SLURM_PROCID", self.global_rank)
        if rank != task:
            raise ConfigurationError(
                f"PMIX_RANK={rank} and SLURM_PROCID={task} contradict each other: another launcher with PMIx runs in "
                "this task. Set cluster_environment='slurm' if the tasks are the processes of the run, or set RANK, "
                "WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT in each process."
            )
        super().validate_settings(processes_per_node, num_nodes)
