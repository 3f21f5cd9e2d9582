"""Replicas of Kubeflow's PyTorchJob: one process on each."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ..errors import ConfigurationError
from .external import LaunchedEnvironment, RankVariables
from .torchelastic import check_size, has_env_variables

__all__ = ["KubeflowEnvironment"]


class KubeflowEnvironment(LaunchedEnvironment):
    """Ranks from ``RANK`` and ``WORLD_SIZE``, which the training operator sets: each replica is a machine.

    For several processes on a replica, its command is ``torchrun``, which sets its own variables.
    """

    name = "kubeflow"
    variables = RankVariables("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")

    @staticmethod
    def detect(environ: Mapping[str, str] | None = None) -> bool:
        """Whether this is one of several replicas, and no launcher in it has set a local rank.

        Raises:
            ConfigurationError: The replicas' number contradicts that of another launcher.
        """
        environ = os.environ if environ is None else environ
        in_pod = "KUBERNETES_SERVICE_HOST" in environ or "KUBERNETES_PORT" in environ
        if not in_pod or not has_env_variables(environ):
            return False
        check_size("kubeflow", environ)
        return True

    @property
    def local_rank(self) -> int:
        """0: the only process of its replica."""
        return 0

    @property
    def local_world_size(self) -> int:
        """1."""
        return 1

    def command(self, processes_per_node: int, num_nodes: int) -> str:
        """See :meth:`LaunchedEnvironment.command`."""
        del num_nodes  # the job's number of replicas
        return f"torchrun --nproc_per_node {processes_per_node}"

    def validate_settings(self, processes_per_node: int, num_nodes: int) -> None:
        """Reject other numbers than the job's, and a job that is meant for torchrun.

        Raises:
            ConfigurationError: The numbers differ, or ``nprocPerNode`` asks for several processes on each replica.
        """
        per_replica = self.environ.get("PET_NPROC_PER_NODE", "1")
        if per_replica not in ("1", "auto"):
            raise ConfigurationError(
                f"the PyTorchJob's nprocPerNode is {per_replica[:100]!r} (PET_NPROC_PER_NODE), but the replica's "
                "command started one process. Let it be 'torchrun script.py', which starts as many and reads the same "
                "variables; or leave out nprocPerNode."
            )
        _ = self.main_address, self.main_port  # they raise
        super().validate_settings(processes_per_node, num_nodes)
