"""Processes that torchrun started, or anything else that sets the same variables."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ..errors import ConfigurationError
from .external import LaunchedEnvironment, RankVariables
from .lsf import LSFEnvironment
from .mpi import MPICHEnvironment, OpenMPIEnvironment
from .slurm import SlurmEnvironment
from .variables import LAUNCHED, TORCHRUN_VARIABLES, whole_number

__all__ = ["TorchElasticEnvironment", "check_size", "has_env_variables"]


class TorchElasticEnvironment(LaunchedEnvironment):
    """Ranks from ``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``, ``LOCAL_WORLD_SIZE``, ``GROUP_RANK``; see torchrun's docs.

    If the processes were started by hand on one machine, ``LOCAL_WORLD_SIZE`` and ``GROUP_RANK`` may be missing.
    """

    name = "torchelastic"
    advice = "on several machines, set LOCAL_WORLD_SIZE too"
    variables = RankVariables("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")

    @staticmethod
    def detect(environ: Mapping[str, str] | None = None) -> bool:
        """Whether all of torchrun's variables are set, and were not set by a strategy's launcher.

        Raises:
            ConfigurationError: They contradict those of another launcher, and torchrun has not set them.
        """
        environ = os.environ if environ is None else environ
        if LAUNCHED in environ or not all(variable in environ for variable in TORCHRUN_VARIABLES):
            return False
        if "TORCHELASTIC_RUN_ID" not in environ:
            check_size("torchelastic", environ)
        return True

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


def has_env_variables(environ: Mapping[str, str]) -> bool:
    """Whether the variables for torch's ``env://`` are set for several processes, without a local rank."""
    needed = [name for name in TORCHRUN_VARIABLES if name != "LOCAL_RANK"]
    if LAUNCHED in environ or "LOCAL_RANK" in environ or not all(name in environ for name in needed):
        return False
    return whole_number(environ, "WORLD_SIZE", low=1) > 1


def check_size(asked: str, environ: Mapping[str, str]) -> None:
    """Refuse ``WORLD_SIZE``, which may be left over, where another launcher has started another number of processes.

    Args:
        asked: The name of the environment that would use it.
        environ: The environment variables.

    Raises:
        ConfigurationError: One has.
    """
    for kind in (LSFEnvironment, OpenMPIEnvironment, MPICHEnvironment, SlurmEnvironment):
        if kind.detect(environ) and str(size := kind(environ).world_size) != environ["WORLD_SIZE"]:
            raise ConfigurationError(
                f"the environment variables contradict each other: WORLD_SIZE={environ['WORLD_SIZE'][:100]}, and those "
                f"of {kind.name!r} for {size} processes. Set cluster_environment to {asked!r} or {kind.name!r}, or "
                "unset RANK and WORLD_SIZE"
            )
