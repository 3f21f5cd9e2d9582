"""Cluster environments: they tell a process its ranks and the address at which the processes meet."""

from core.environments.base import ClusterEnvironment
from core.environments.launched import LaunchedEnvironment, RankVariables
from core.environments.local import LocalEnvironment
from core.environments.mpi import MPICHEnvironment, OpenMPIEnvironment
from core.environments.slurm import SlurmEnvironment
from core.environments.torchelastic import TorchElasticEnvironment

__all__ = [
    "ClusterEnvironment",
    "LaunchedEnvironment",
    "LocalEnvironment",
    "MPICHEnvironment",
    "OpenMPIEnvironment",
    "RankVariables",
    "SlurmEnvironment",
    "TorchElasticEnvironment",
]
