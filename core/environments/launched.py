"""Processes that an external launcher started, each with its ranks in environment variables."""

from __future__ import annotations

from abc import abstractmethod

from attrs import frozen

from core.environments.base import ClusterEnvironment
from core.environments.variables import LARGEST_PORT, whole_number
from core.errors import ConfigurationError

__all__ = ["LaunchedEnvironment", "RankVariables"]


@frozen
class RankVariables:
    """The environment variables that hold a process's numbers.

    Attributes:
        rank: This process's number among all.
        size: How many there are.
        local_rank: This process's number on its machine.
        local_size: How many there are on this machine.
        node_rank: This machine's number; ``None`` where the launcher does not say it.
    """

    rank: str
    size: str
    local_rank: str
    local_size: str
    node_rank: str | None = None


class LaunchedEnvironment(ClusterEnvironment):
    """A ClusterEnvironment whose launcher gave every process its numbers, and machines as many processes each."""

    variables: RankVariables
    """Where the numbers are."""
    advice: str = ""
    """What else whoever sets the variables by hand must know, for messages."""
    ranks_count_through: bool = True
    """Whether the ranks of a machine are neighbours, machine after machine."""

    @property
    def creates_processes_externally(self) -> bool:
        """True: the launcher started every process."""
        return True

    @property
    def main_address(self) -> str:
        """``MASTER_ADDR``."""
        return self.environ["MASTER_ADDR"]

    @property
    def main_port(self) -> int:
        """``MASTER_PORT``."""
        return whole_number(self.environ, "MASTER_PORT", low=1, high=LARGEST_PORT)

    @property
    def world_size(self) -> int:
        """As the launcher says."""
        return whole_number(self.environ, self.variables.size, low=1)

    @property
    def local_world_size(self) -> int:
        """As the launcher says."""
        return whole_number(self.environ, self.variables.local_size, low=1)

    @property
    def global_rank(self) -> int:
        """As the launcher says."""
        return whole_number(self.environ, self.variables.rank)

    @property
    def local_rank(self) -> int:
        """As the launcher says."""
        return whole_number(self.environ, self.variables.local_rank)

    @property
    def node_rank(self) -> int:
        """As the launcher says; where it does not, counted by ranks."""
        counted = self.global_rank // self.local_world_size
        variable = self.variables.node_rank
        return counted if variable is None else whole_number(self.environ, variable, counted)

    @abstractmethod
    def command(self, processes_per_node: int, num_nodes: int) -> str:
        """How the launcher is asked for these numbers, for messages."""

    def validate_settings(self, processes_per_node: int, num_nodes: int) -> None:
        """Refuse another number of processes or machines than the launcher gave.

        Raises:
            ConfigurationError: The numbers differ, or the variables contradict each other or are no numbers.
        """
        self._check_ranks()
        size, local_size = self.variables.size, self.variables.local_size
        if processes_per_node != self.local_world_size:
            raise ConfigurationError(
                f"devices: {processes_per_node} process(es) on this machine asked for, but its launcher started "
                f"{self.local_world_size} ({local_size}). Valid: devices={self.local_world_size}, devices='auto', or "
                f"{self.command(processes_per_node, num_nodes)}."
            )
        if num_nodes != self.num_nodes:
            raise ConfigurationError(
                f"num_nodes={num_nodes}: the launcher started {self.num_nodes} machine(s) ({size}={self.world_size}, "
                f"{local_size}={self.local_world_size}). Valid: num_nodes={self.num_nodes} or 'auto'."
            )

    def _check_ranks(self) -> None:
        rank, size = self.global_rank, self.world_size
        local_rank, local_size, node_rank = self.local_rank, self.local_world_size, self.node_rank
        fault = ""
        if rank >= size or local_rank >= local_size:
            fault = "a rank must be below its size"
        elif size % local_size:
            fault = "every machine must have the same number of processes"
        elif self.ranks_count_through and rank != node_rank * local_size + local_rank:
            fault = "ranks must count through the machines"
        if fault:
            names = self.variables
            raise ConfigurationError(
                f"environment variables {names.rank}={rank}, {names.size}={size}, {names.local_rank}={local_rank}, "
                f"{names.local_size}={local_size}, {names.node_rank or 'number of the machine'}={node_rank}: {fault}. "
                f"Valid: as the launcher sets them: {self.command(local_size, self.num_nodes)}{self.advice}."
            )
