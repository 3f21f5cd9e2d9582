"""Processes that were given ``RANK`` and ``WORLD_SIZE``, but no local rank."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ..errors import ConfigurationError
from .external import LaunchedEnvironment, RankVariables
from .torchelastic import check_size, has_env_variables
from .variables import whole_number

__all__ = ["PlainEnvironment"]

_LOOPBACK = ("localhost", "::1")


class PlainEnvironment(LaunchedEnvironment):
    """Ranks from ``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR`` and ``MASTER_PORT``, as for torch's ``env://``.

    With a loopback address all processes are on this machine. Otherwise ``LOCAL_WORLD_SIZE`` must say how many are,
    with consecutive ranks: nothing else tells which device is this process's.
    """

    name = "plain"
    advice = "on several machines, set LOCAL_WORLD_SIZE too"
    variables = RankVariables("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")

    @staticmethod
    def detect(environ: Mapping[str, str] | None = None) -> bool:
        """Whether the variables for ``env://`` are set for several processes, and ``LOCAL_RANK`` is not.

        Raises:
            ConfigurationError: Their number contradicts that of another launcher.
        """
        environ = os.environ if environ is None else environ
        if not has_env_variables(environ):
            return False
        check_size("plain", environ)
        return True

    @property
    def local_world_size(self) -> int:
        """``LOCAL_WORLD_SIZE``; with a loopback address ``WORLD_SIZE``."""
        if self.variables.local_size in self.environ:
            return whole_number(self.environ, self.variables.local_size, low=1)
        address = self.main_address
        if address in _LOOPBACK or address.startswith("127."):
            return self.world_size
        raise ConfigurationError(
            f"RANK={self.global_rank} and WORLD_SIZE={self.world_size} are set, but not how "
            f"many of the processes are on this machine (MASTER_ADDR={address[:100]}). Set LOCAL_WORLD_SIZE, or "
            "cluster_environment='kubeflow' if there is one process on each machine."
        )

    @property
    def local_rank(self) -> int:
        """``LOCAL_RANK``; otherwise from ``RANK``, as ranks are consecutive on each machine."""
        return whole_number(self.environ, self.variables.local_rank, self.global_rank % self.local_world_size)

    def command(self, processes_per_node: int, num_nodes: int) -> str:
        """See :meth:`LaunchedEnvironment.command`."""
        machines = f"--nnodes {num_nodes} " if num_nodes > 1 else ""
        return f"torchrun {machines}--nproc_per_node {processes_per_node}"

    def validate_settings(self, processes_per_node: int, num_nodes: int) -> None:
        """Reject other numbers than the variables', and an invalid address.

        Raises:
            ConfigurationError: The numbers differ, or a variable is missing or contradicts others.
        """
        _ = self.main_address, self.main_port  # they raise
        super().validate_settings(processes_per_node, num_nodes)
