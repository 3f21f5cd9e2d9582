"""Processes whose ranks are in torch's own variables: set by torchrun, by hand, or by Kubeflow."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ..errors import ConfigurationError
from .base import LAUNCHED, TORCHRUN_VARIABLES, LaunchedEnvironment, RankVariables, whole_number
from .lsf import LSFEnvironment
from .mpi import MPICHEnvironment, OpenMPIEnvironment
from .slurm import SlurmEnvironment


class _TorchVariables(LaunchedEnvironment):
    """Ranks from torch's own variables, with torchrun as the launcher that is proposed."""

    def command(self, processes_per_node: int, num_nodes: int) -> str:
        """See :meth:`LaunchedEnvironment.command`."""
        machines = f"--nnodes {num_nodes} " if num_nodes > 1 else ""
        return f"torchrun {machines}--nproc_per_node {processes_per_node}"

    def validate_settings(self, processes_per_node: int, num_nodes: int) -> None:
        """Reject other numbers than the variables', and an invalid address.

        Raises:
            ConfigurationError: The numbers differ, the variables contradict each other, or ``MASTER_ADDR`` or
                ``MASTER_PORT`` is invalid.
        """
        _ = self.main_address, self.main_port  # they raise
        super().validate_settings(processes_per_node, num_nodes)


class TorchElasticEnvironment(_TorchVariables):
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


def has_env_variables(environ: Mapping[str, str]) -> bool:
    """Whether the variables for torch's ``env://`` are set for several processes, without a local rank."""
    needed = [name for name in TORCHRUN_VARIABLES if name != "LOCAL_RANK"]
    if LAUNCHED in environ or "LOCAL_RANK" in environ or not all(name in environ for name in needed):
        return False
    return whole_number(environ, "WORLD_SIZE", low=1) > 1


def check_size(asked: str, environ: Mapping[str, str]) -> None:
    """Reject ``WORLD_SIZE``, which may be left over, where another launcher has started another number of processes.

    Args:
        asked: The name of the environment that would use it.
        environ: The environment variables.

    Raises:
        ConfigurationError: One has.
    """
    for kind in (LSFEnvironment, OpenMPIEnvironment, MPICHEnvironment, SlurmEnvironment):
        if kind.detect(environ) and str(size := kind(environ).world_size) != environ["WORLD_SIZE"]:
            raise ConfigurationError(
                f"the environment variables contradict each other: WORLD_SIZE={environ['WORLD_SIZE'][:100]}, but the "
                f"variables of {kind.name!r} are for {size} processes. Set cluster_environment to {asked!r} or "
                f"{kind.name!r}, or unset RANK and WORLD_SIZE"
            )


_LOOPBACK = ("localhost", "::1")


class PlainEnvironment(_TorchVariables):
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
        # The nodes are the job's number of replicas.
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
