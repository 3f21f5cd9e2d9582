"""Processes that torchrun started, or anything else that sets the same variables."""

from __future__ import annotations

import os
from collections.abc import Mapping

from . import detect
from .external import LaunchedEnvironment, RankVariables
from .variables import whole_number

__all__ = ["TorchElasticEnvironment"]


class TorchElasticEnvironment(LaunchedEnvironment):
    """Ranks from ``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``, ``LOCAL_WORLD_SIZE``, ``GROUP_RANK``; see torchrun's docs.

    If the processes were started by hand on one machine, ``LOCAL_WORLD_SIZE`` and ``GROUP_RANK`` may be missing.
    """

    name = "torchelastic"
    advice = "on several machines, set LOCAL_WORLD_SIZE too"
    variables = RankVariables("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")

    @staticmethod
    def detect(environ: Mapping[str, str] | None = None) -> bool:
        """Whether all of torchrun's variables are set."""
        return detect.torchelastic(os.environ if environ is None else environ)

    @property
    def hosts_store(self) -> bool:
        """Whether torchrun's agent serves the store, as ``TORCHELASTIC_USE_AGENT_STORE`` tells."""
        return self.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)

    @property
    def leaves_orphans(self) -> bool:
        """Whether torchrun's agent has started this process: its processes train to the end if it is killed."""
        return "TORCHELASTIC_RUN_ID" in self.environ

    @property
    def local_world_size(self) -> int:
        """``LOCAL_WORLD_SIZE``; ``WORLD_SIZE`` if it is not set."""
        return whole_number(self.environ, self.variables.local_size, self.world_size, low=1)

    def command(self, processes_per_node: int, num_nodes: int) -> str:
        """See :meth:`LaunchedEnvironment.command`."""
        machines = f"--nnodes {num_nodes} " if num_nodes > 1 else ""
        return f"torchrun {machines}--nproc_per_node {processes_per_node}"

    def validate_settings(self, processes_per_node: int, num_nodes: int) -> None:
        """Reject numbers other than torchrun's, and an empty address.

        Raises:
            ConfigurationError: The numbers differ, the variables contradict each other, or ``MASTER_ADDR`` or
                ``MASTER_PORT`` is invalid.
        """
        _ = self.main_address, self.main_port  # they raise
        super().validate_settings(processes_per_node, num_nodes)
