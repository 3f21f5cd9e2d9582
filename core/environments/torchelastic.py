"""Processes started by torchrun, or by anything that sets the variables it sets."""

from __future__ import annotations

import os
from collections.abc import Mapping

from core.environments import detect
from core.environments.launched import LaunchedEnvironment, RankVariables
from core.environments.variables import whole_number
from core.errors import ConfigurationError

__all__ = ["TorchElasticEnvironment"]


class TorchElasticEnvironment(LaunchedEnvironment):
    """Ranks from ``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``, ``LOCAL_WORLD_SIZE``, ``GROUP_RANK``; see torchrun's docs.

    Where the processes were started by hand on one machine, ``LOCAL_WORLD_SIZE`` and ``GROUP_RANK`` may be missing.
    """

    name = "torchelastic"
    advice = "; by hand, LOCAL_WORLD_SIZE too where there are several machines"
    variables = RankVariables("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")

    @staticmethod
    def detect(environ: Mapping[str, str] | None = None) -> bool:
        """Whether torchrun's variables are all there."""
        return detect.torchelastic(os.environ if environ is None else environ)

    @property
    def hosts_store(self) -> bool:
        """Whether torchrun's agent serves the store, as it says in ``TORCHELASTIC_USE_AGENT_STORE``."""
        return self.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)

    @property
    def local_world_size(self) -> int:
        """``LOCAL_WORLD_SIZE``; ``WORLD_SIZE`` where it is missing."""
        return whole_number(self.environ, self.variables.local_size, self.world_size, low=1)

    def command(self, processes_per_node: int, num_nodes: int) -> str:
        """See :meth:`LaunchedEnvironment.command`."""
        machines = f"--nnodes {num_nodes} " if num_nodes > 1 else ""
        return f"torchrun {machines}--nproc_per_node {processes_per_node}"

    def validate_settings(self, processes_per_node: int, num_nodes: int) -> None:
        """Refuse other numbers than torchrun gave, and an address that is none.

        Raises:
            ConfigurationError: As said.
        """
        address, port = self.main_address, self.main_port
        if not address:
            raise ConfigurationError(
                f"environment variables MASTER_ADDR={address!r}, MASTER_PORT={port}: no address to meet at. Valid: a "
                "host name or an address."
            )
        super().validate_settings(processes_per_node, num_nodes)
