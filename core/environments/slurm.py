"""SLURM: processes that ``srun`` started, also with PMIx."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from ..errors import ConfigurationError
from .base import LARGEST_ID, LARGEST_PORT, LAUNCHED, LaunchedEnvironment, RankVariables, port_of, whole_number

_COUNTS = re.compile(r"(\d{1,6})(?:\(x(\d{1,6})\))?", re.ASCII)
_PART = re.compile(r"([^\[\],\s]*)(?:\[(\d+)(?:[-,][\d,-]*)?\])?", re.ASCII)
"""A part of a host's name, and the first of the numbers behind it."""


class SlurmEnvironment(LaunchedEnvironment):
    """Ranks from ``SLURM_PROCID``, ``SLURM_LOCALID``, ``SLURM_NODEID`` and the number of tasks of the step.

    The processes meet at ``MASTER_ADDR``, by default the first host of ``SLURM_STEP_NODELIST``, and ``MASTER_PORT``,
    by default a port that follows from the numbers of job and step.
    """

    name = "slurm"
    advice = "ranks are consecutive with --distribution=block"
    variables = RankVariables(
        "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE", "SLURM_NODEID"
    )

    @staticmethod
    def detect(environ: Mapping[str, str] | None = None) -> bool:
        """Whether SLURM has several tasks for this program; an interactive shell is one, whatever was allocated."""
        environ = os.environ if environ is None else environ
        if LAUNCHED in environ or "SLURM_PROCID" not in environ:
            return False
        if "SLURM_STEP_NUM_TASKS" not in environ and environ.get("SLURM_JOB_NAME") in ("bash", "interactive"):
            return False
        return _tasks(environ) > 1

    @property
    def world_size(self) -> int:
        """Number of tasks of the step."""
        return _tasks(self.environ)

    @property
    def local_world_size(self) -> int:
        """Number of tasks of the step on this machine."""
        variable = next(
            (name for name in ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE") if name in self.environ), ""
        )
        if not variable:
            return self.world_size
        counts: list[int] = []
        for part in self.environ[variable].split(","):
            match = _COUNTS.fullmatch(part)
            if match is None:
                raise ConfigurationError(
                    f"environment variable {variable} is {self.environ[variable][:100]!r}. It must be numbers of "
                    "tasks, such as '2(x3),1'."
                )
            counts += [int(match[1])] * min(int(match[2] or 1), 1_000_000 - len(counts))
        node = self.node_rank
        if node >= len(counts) or not counts[node]:
            raise ConfigurationError(
                f"the environment variables contradict each other: SLURM_NODEID={node}, and "
                f"{variable}={self.environ[variable][:100]} has no tasks for it."
            )
        return counts[node]

    @property
    def node_rank(self) -> int:
        """``SLURM_NODEID``."""
        return whole_number(self.environ, "SLURM_NODEID", 0)

    @property
    def main_address(self) -> str:
        """``MASTER_ADDR``; otherwise the first host of the step."""
        if self.environ.get("MASTER_ADDR"):
            return self.environ["MASTER_ADDR"]
        names = ("SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST")
        hosts = next((self.environ[name] for name in names if self.environ.get(name)), "")
        if self.num_nodes == 1:
            return "127.0.0.1"
        if not hosts:
            raise ConfigurationError(
                "environment variable SLURM_STEP_NODELIST is not set. Set MASTER_ADDR to the host name of rank 0."
            )
        return first_host(hosts)

    @property
    def main_port(self) -> int:
        """``MASTER_PORT``; otherwise a number from 20000 to 31999 computed from the numbers of the job and the step."""
        job, step = (whole_number(self.environ, name, 0, high=LARGEST_ID) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
        default = port_of(job * 17 + step)
        return whole_number(self.environ, "MASTER_PORT", default, low=1, high=LARGEST_PORT)

    def command(self, processes_per_node: int, num_nodes: int) -> str:
        """See :meth:`LaunchedEnvironment.command`."""
        return f"srun --nodes={num_nodes} --ntasks-per-node={processes_per_node}"

    def validate_settings(self, processes_per_node: int, num_nodes: int) -> None:
        """Reject numbers other than the step's, and a batch script that was not started by ``srun``.

        Raises:
            ConfigurationError: The numbers differ, or this process is alone although the job has several tasks.
        """
        if "SLURM_STEP_NUM_TASKS" not in self.environ and "SLURM_STEP_ID" not in self.environ and not self.global_rank:
            raise ConfigurationError(
                f"the job has {self.world_size} tasks (SLURM_NTASKS), but this process was started without srun, so "
                "the others do not exist. Start the script with 'srun python ...', or set cluster_environment='local' "
                "for a run of this process alone."
            )
        super().validate_settings(processes_per_node, num_nodes)


def _tasks(environ: Mapping[str, str]) -> int:
    """The number of tasks of this step; of the job, if the step's is not set."""
    names = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS")
    return whole_number(environ, next((name for name in names if name in environ), names[0]), 1, low=1)


def first_host(hosts: str) -> str:
    """The first host of a list in SLURM's notation: ``node[07-12,20],login`` means ``node07``.

    Raises:
        ConfigurationError: The list is in another notation.
    """
    parts: list[str] = []
    end = 0
    while part := _PART.match(hosts, end):  # several brackets, as in rack[1-2]node[1-4]
        parts.append(part[1] + (part[2] or ""))
        end = part.end()
        if part[2] is None:
            break
    host = "".join(parts) if end == len(hosts) or hosts[end] == "," else ""
    if not host:
        raise ConfigurationError(
            f"the list of hosts {hosts[:100]!r} (SLURM_STEP_NODELIST) is not in SLURM's notation, such as "
            "'node[07-12]'. Set MASTER_ADDR to the host name of rank 0."
        )
    return host


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
        default = port_of(name) if name else super().main_port
        return whole_number(self.environ, "MASTER_PORT", default, low=1, high=LARGEST_PORT)

    def command(self, processes_per_node: int, num_nodes: int) -> str:
        """See :meth:`LaunchedEnvironment.command`."""
        return f"srun --mpi=pmix --nodes={num_nodes} --ntasks-per-node={processes_per_node}"

    def validate_settings(self, processes_per_node: int, num_nodes: int) -> None:
        """Reject numbers that differ from the step's, and ranks that differ between PMIx and SLURM.

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
