"""Processes that an external launcher started, with their ranks in environment variables."""

from __future__ import annotations

from abc import abstractmethod

from attrs import frozen

from ..errors import ConfigurationError
from .base import ClusterEnvironment
from .variables import LARGEST_PORT, whole_number

__all__ = ["LaunchedEnvironment", "RankVariables"]


@frozen
class RankVariables:
    """The names of the environment variables that hold a process's ranks.

    Attributes:
        rank: Rank of this process among all processes.
        size: Number of processes on all machines.
        local_rank: Rank of this process on its machine.
        local_size: Number of processes on this machine.
        node_rank: Rank of this machine; ``None`` if the launcher does not set it.
    """

    rank: str
    size: str
    local_rank: str
    local_size: str
    node_rank: str | None = None


class LaunchedEnvironment(ClusterEnvironment):
    """A ClusterEnvironment whose launcher tells every process its ranks, with equally many processes on each machine.

    A subclass sets :attr:`variables` and defines ``detect`` and :meth:`command`. It overrides the properties that the
    launcher tells in another way, such as ``main_address`` where there is no ``MASTER_ADDR``.
    """

    variables: RankVariables
    """The names of the environment variables."""
    advice: str = ""
    """What to observe when the variables are set by hand, for error messages."""
    ranks_count_through: bool = True
    """Whether ranks are consecutive on each machine, machine after machine."""

    @property
    def creates_processes_externally(self) -> bool:
        """True: the launcher has started all processes."""
        return True

    @property
    def main_address(self) -> str:
        """``MASTER_ADDR``."""
        address = self.environ.get("MASTER_ADDR", "")
        if not address:
            raise ConfigurationError(
                f"environment variable MASTER_ADDR is {self.environ.get('MASTER_ADDR')!r}. It must be the host name or "
                "IP address of rank 0's machine."
            )
        return address

    @property
    def main_port(self) -> int:
        """``MASTER_PORT``."""
        return whole_number(self.environ, "MASTER_PORT", low=1, high=LARGEST_PORT)

    @property
    def world_size(self) -> int:
        """Number of processes on all machines."""
        return whole_number(self.environ, self.variables.size, low=1)

    @property
    def local_world_size(self) -> int:
        """Number of processes on this machine."""
        return whole_number(self.environ, self.variables.local_size, low=1)

    @property
    def global_rank(self) -> int:
        """Rank of this process among all processes."""
        if self.variables.rank not in self.environ:
            raise ConfigurationError(
                f"cluster_environment={self.name!r}: environment variable {self.variables.rank} is not set: this "
                "launcher did not start this process. Start it with the launcher, or leave out cluster_environment."
            )
        return whole_number(self.environ, self.variables.rank)

    @property
    def local_rank(self) -> int:
        """Rank of this process on its machine."""
        return whole_number(self.environ, self.variables.local_rank)

    @property
    def node_rank(self) -> int:
        """Rank of this machine; computed from the ranks if the launcher does not set it."""
        counted = self.global_rank // self.local_world_size
        variable = self.variables.node_rank
        return counted if variable is None else whole_number(self.environ, variable, counted)

    @abstractmethod
    def command(self, processes_per_node: int, num_nodes: int) -> str:
        """The command that starts this many processes, for error messages."""

    def validate_settings(self, processes_per_node: int, num_nodes: int) -> None:
        """Reject a number of processes or machines other than the launcher's.

        Raises:
            ConfigurationError: The numbers differ, the variables contradict each other, or one is not an integer.
        """
        self._check_ranks()
        size, local_size = self.variables.size, self.variables.local_size
        if processes_per_node != self.local_world_size:
            raise ConfigurationError(
                f"devices asks for {processes_per_node} process(es) on this machine, but the launcher has started "
                f"{self.local_world_size} ({local_size}). Set devices={self.local_world_size} or devices='auto', or "
                f"start the script with '{self.command(processes_per_node, num_nodes)}'."
            )
        if num_nodes != self.num_nodes:
            raise ConfigurationError(
                f"num_nodes={num_nodes}, but the launcher has started processes on {self.num_nodes} machine(s) "
                f"({size}={self.world_size}, {local_size}={self.local_world_size}). Set num_nodes={self.num_nodes} or "
                "num_nodes='auto'."
            )

    def _check_ranks(self) -> None:
        rank, size = self.global_rank, self.world_size
        local_rank, local_size, node_rank = self.local_rank, self.local_world_size, self.node_rank
        fault = ""
        if rank >= size or local_rank >= local_size:
            fault = "a rank must be smaller than its world size"
        elif size % local_size:
            fault = "every machine must have the same number of processes"
        elif self.ranks_count_through and rank != node_rank * local_size + local_rank:
            fault = "ranks must be consecutive on each machine"
        if fault:
            names = self.variables
            advice = f"; {self.advice}" if self.advice else ""
            raise ConfigurationError(
                f"the environment variables contradict each other: {fault}, but {names.rank}={rank}, "
                f"{names.size}={size}, {names.local_rank}={local_rank}, {names.local_size}={local_size}, "
                f"{names.node_rank or 'node rank'}={node_rank}. "
                f"Start the script with '{self.command(local_size, self.num_nodes)}'{advice}."
            )
