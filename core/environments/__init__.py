"""Cluster environments: they tell a process its ranks and the address at which the processes meet."""

from ..utilities.lazy import lazy_names
from .base import ClusterEnvironment
from .external import LaunchedEnvironment, RankVariables
from .kubeflow import KubeflowEnvironment
from .local import LocalEnvironment
from .lsf import LSFEnvironment
from .mpi import MPICHEnvironment, OpenMPIEnvironment
from .plain import PlainEnvironment
from .pmix import PMIxEnvironment
from .slurm import SlurmEnvironment
from .torchelastic import TorchElasticEnvironment

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
]

__getattr__, __dir__ = lazy_names(__name__, {})
