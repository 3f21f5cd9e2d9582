"""The ClusterEnvironment: tells a process its ranks, the world size, and the main address and port."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from ..utilities.renamed import Renaming

__all__ = ["ClusterEnvironment"]


class ClusterEnvironment(Renaming, ABC):
    """Tells a process its ranks and the world size, from the environment variables that the cluster has set.

    Args:
        environ: The environment variables; by default a copy of this process's. They are read once.
    """

    name: str = ""
    """The name that users request it by."""
    starts_processes: ClassVar[bool] = False
    """Whether it starts the processes of a run itself, wherever the cluster has room: see :meth:`run_function`."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self.environ: Mapping[str, str] = dict(os.environ if environ is None else environ)

    @staticmethod
    @abstractmethod
    def detect(environ: Mapping[str, str] | None = None) -> bool:
        """Whether this kind of cluster started this process.

        Raises:
            ConfigurationError: Another launcher has started this process as one of several, and this environment would
                treat it as the only one.
        """

    @property
    @abstractmethod
    def creates_processes_externally(self) -> bool:
        """Whether the cluster starts all processes, so that the strategy must start none."""

    @property
    @abstractmethod
    def main_address(self) -> str:
        """Host name or IP address of the machine of rank 0."""

    @property
    @abstractmethod
    def main_port(self) -> int:
        """Port on that machine at which the processes meet, the same in each of them."""

    @property
    @abstractmethod
    def world_size(self) -> int:
        """Number of processes on all machines."""

    @property
    @abstractmethod
    def local_world_size(self) -> int:
        """Number of processes on this machine."""

    @property
    @abstractmethod
    def global_rank(self) -> int:
        """Rank of this process among all processes."""

    @property
    @abstractmethod
    def local_rank(self) -> int:
        """Rank of this process on its machine."""

    @property
    @abstractmethod
    def node_rank(self) -> int:
        """Rank of this machine."""

    @property
    def num_nodes(self) -> int:
        """Number of machines."""
        return max(1, self.world_size // max(1, self.local_world_size))

    @property
    def hosts_store(self) -> bool:
        """Whether the cluster serves the store at ``main_address:main_port``; otherwise rank 0 serves it."""
        return False

    @property
    def leaves_orphans(self) -> bool:
        """Whether the process that started this one does not see to it that this one ends if it is killed."""
        return False

    def requeue_command(self) -> list[str]:
        """The command that puts the job back into the scheduler's queue, to start again; empty if there is none."""
        if self.environ.get("SLURM_ARRAY_JOB_ID") and self.environ.get("SLURM_ARRAY_TASK_ID"):
            job = f"{self.environ['SLURM_ARRAY_JOB_ID']}_{self.environ['SLURM_ARRAY_TASK_ID']}"
        else:
            job = self.environ.get("SLURM_JOB_ID", "")
        return ["scontrol", "requeue", job] if job else []

    def connect(self, processes_per_node: int, num_nodes: int) -> None:
        """Receive the numbers of the run that is about to start, and check them.

        Args:
            processes_per_node: Number of processes on each machine.
            num_nodes: Number of machines.

        Raises:
            ConfigurationError: See :meth:`validate_settings`.
        """
        self.validate_settings(processes_per_node, num_nodes)

    def validate_settings(self, processes_per_node: int, num_nodes: int) -> None:
        """Reject numbers that contradict what the cluster has started.

        Args:
            processes_per_node: Requested number of processes on each machine.
            num_nodes: Requested number of machines.

        Raises:
            ConfigurationError: The cluster has started another number of processes or machines.
        """
        del processes_per_node, num_nodes

    @property
    def restarted_since(self) -> float | None:
        """When the run was first started, in seconds since the epoch, if it was started again after a failure.

        ``None`` in a first start. A fit then goes on from the newest checkpoint that was committed since that time.
        """
        return None

    def run_function(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        variables: Mapping[str, str],
        accelerator: str,
        strategy: str,
    ) -> Any:
        """Start the processes of the run, and call ``function(environ, *args, **kwargs)`` in each.

        Only called if :attr:`starts_processes`, in the process that the user started, after :meth:`connect`.

        Args:
            function: Its first argument is the process's environment variables, which tell its ranks to an object of
                this class.
            args: Further arguments.
            kwargs: Further keyword arguments.
            variables: Environment variables that each process needs in addition to its ranks.
            accelerator: Name of the accelerator that each process needs one device of.
            strategy: Name of the strategy that the user asked for, for error messages.

        Returns:
            What the function returned in rank 0.

        Raises:
            LaunchError: A process could not be started, or failed.
        """
        raise NotImplementedError(f"{type(self).__name__} starts no processes")

    def teardown(self) -> None:  # most have nothing to undo
        """Undo what this environment has set up."""
