"""Cluster environments: they tell a process its ranks and the address at which the processes meet."""

from ..utilities.lazy import lazy_names
from .base import ClusterEnvironment, LaunchedEnvironment, RankVariables, whole_number
from .local import LocalEnvironment
from .lsf import LSFEnvironment
from .mpi import MPICHEnvironment, OpenMPIEnvironment
from .slurm import PMIxEnvironment, SlurmEnvironment
from .torch_env import KubeflowEnvironment, PlainEnvironment, TorchElasticEnvironment

__all__ = [
    "ClusterEnvironment",
    "KubeflowEnvironment",
    "LSFEnvironment",
    "LaunchedEnvironment",
    "LocalEnvironment",
    "MPICHEnvironment",
    "OpenMPIEnvironment",
    "PMIxEnvironment",
    "PlainEnvironment",
    "RankVariables",
    "SlurmEnvironment",
    "TorchElasticEnvironment",
    "whole_number",
]

__getattr__, __dir__ = lazy_names(__name__, {})
