"""Processes started by torchrun, or by anything that sets the variables it sets."""

from __future__ import annotations

import os
from collections.abc import Mapping

from core.environments import detect
from core.environments.base import ClusterEnvironment
from core.environments.variables import LARGEST_PORT, whole_number
from core.errors import ConfigurationError

__all__ = ["TorchElasticEnvironment"]


class TorchElasticEnvironment(ClusterEnvironment):
    """Ranks from ``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``, ``LOCAL_WORLD_SIZE``, ``GROUP_RANK``; see torchrun's docs.

    Where the processes were started by hand on one machine, ``LOCAL_WORLD_SIZE`` may be missing.
    """

    name = "torchelastic"

    @staticmethod
    def detect(environ: Mapping[str, str] | None = None) -> bool:
        """Whether torchrun's variables are all there."""
        return detect.torchelastic(os.environ if environ is None else environ)

    @property
    def creates_processes_externally(self) -> bool:
        """True: torchrun started every process."""
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
    def hosts_store(self) -> bool:
        """Whether torchrun's agent serves the store, as it says in ``TORCHELASTIC_USE_AGENT_STORE``."""
        return self.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)

    @property
    def world_size(self) -> int:
        """``WORLD_SIZE``."""
        return whole_number(self.environ, "WORLD_SIZE", low=1)

    @property
    def local_world_size(self) -> int:
        """``LOCAL_WORLD_SIZE``; ``WORLD_SIZE`` where it is missing."""
        return whole_number(self.environ, "LOCAL_WORLD_SIZE", self.world_size, low=1)

    @property
    def global_rank(self) -> int:
        """``RANK``."""
        return whole_number(self.environ, "RANK")

    @property
    def local_rank(self) -> int:
        """``LOCAL_RANK``."""
        return whole_number(self.environ, "LOCAL_RANK")

    @property
    def node_rank(self) -> int:
        """``GROUP_RANK``; where it is missing, counted by ranks."""
        return whole_number(self.environ, "GROUP_RANK", self.global_rank // self.local_world_size)

    def validate_settings(self, processes_per_node: int, num_nodes: int) -> None:
        """Refuse another number of processes or machines than torchrun gave.

        Raises:
            ConfigurationError: The numbers differ, or the variables contradict each other or are no numbers.
        """
        self._check_ranks()
        address, port = self.main_address, self.main_port
        if not address:
            raise ConfigurationError(
                f"environment variables MASTER_ADDR={address!r}, MASTER_PORT={port}: no address to meet at. Valid: a "
                "host name or an address."
            )
        if processes_per_node != self.local_world_size:
            raise ConfigurationError(
                f"devices: {processes_per_node} process(es) on this machine asked for, but its launcher started "
                f"{self.local_world_size} (LOCAL_WORLD_SIZE). Valid: devices={self.local_world_size}, devices='auto', "
                f"or torchrun --nproc_per_node {processes_per_node}."
            )
        if num_nodes != self.num_nodes:
            raise ConfigurationError(
                f"num_nodes={num_nodes}: the launcher started {self.num_nodes} machine(s) "
                f"(WORLD_SIZE={self.world_size}, LOCAL_WORLD_SIZE={self.local_world_size}). Valid: "
                f"num_nodes={self.num_nodes} or 'auto'."
            )

    def _check_ranks(self) -> None:
        rank, size = self.global_rank, self.world_size
        local_rank, local_size, node_rank = self.local_rank, self.local_world_size, self.node_rank
        fault = ""
        if rank >= size or local_rank >= local_size:
            fault = "a rank must be below its size"
        elif size % local_size:
            fault = "every machine must have the same number of processes"
        elif rank != node_rank * local_size + local_rank:
            fault = "ranks must count through the machines"
        if fault:
            raise ConfigurationError(
                f"environment variables RANK={rank}, WORLD_SIZE={size}, LOCAL_RANK={local_rank}, "
                f"LOCAL_WORLD_SIZE={local_size}, GROUP_RANK={node_rank}: {fault}. Valid: as torchrun sets them; by "
                "hand, LOCAL_WORLD_SIZE too where there are several machines."
            )
