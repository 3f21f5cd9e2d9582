"""The ClusterEnvironment: who this process is among the others."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping

__all__ = ["ClusterEnvironment"]


class ClusterEnvironment(ABC):
    """Who this process is among the others, read from what the cluster put into the environment variables.

    Args:
        environ: The environment variables; a copy of the process's own where none are given. They are read once.
    """

    name: str = ""
    """The name it is asked for by."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self.environ: Mapping[str, str] = dict(os.environ if environ is None else environ)

    @staticmethod
    @abstractmethod
    def detect(environ: Mapping[str, str] | None = None) -> bool:
        """Whether this process was started by this kind of cluster."""

    @property
    @abstractmethod
    def creates_processes_externally(self) -> bool:
        """Whether the cluster starts every process, so that no launcher of ours may."""

    @property
    @abstractmethod
    def main_address(self) -> str:
        """Host name or address of the machine of rank 0."""

    @property
    @abstractmethod
    def main_port(self) -> int:
        """Port on that machine for the processes to meet."""

    @property
    @abstractmethod
    def world_size(self) -> int:
        """How many processes there are in all."""

    @property
    @abstractmethod
    def local_world_size(self) -> int:
        """How many processes there are on this machine."""

    @property
    @abstractmethod
    def global_rank(self) -> int:
        """This process's number among all, from 0."""

    @property
    @abstractmethod
    def local_rank(self) -> int:
        """This process's number on its machine, from 0."""

    @property
    @abstractmethod
    def node_rank(self) -> int:
        """This machine's number, from 0."""

    @property
    def num_nodes(self) -> int:
        """How many machines there are."""
        return max(1, self.world_size // max(1, self.local_world_size))

    @property
    def hosts_store(self) -> bool:
        """Whether the cluster itself serves the store at ``main_address:main_port``; else rank 0 does."""
        return False

    def connect(self, processes_per_node: int, num_nodes: int) -> None:
        """Take the numbers of the run that is about to start; an environment that counts itself checks them."""
        self.validate_settings(processes_per_node, num_nodes)

    def validate_settings(self, processes_per_node: int, num_nodes: int) -> None:
        """Refuse words that this cluster contradicts.

        Args:
            processes_per_node: Processes asked for on each machine.
            num_nodes: Machines asked for.

        Raises:
            ConfigurationError: The cluster gave another number of processes or machines.
        """
        del processes_per_node, num_nodes

    def teardown(self) -> None:  # noqa: B027 - most set up nothing
        """Undo what this environment set up."""
