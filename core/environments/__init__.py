"""Cluster environments: they tell a process its ranks and the address at which the processes meet."""

from core.environments.base import ClusterEnvironment
from core.environments.external import LaunchedEnvironment, RankVariables
from core.environments.kubeflow import KubeflowEnvironment
from core.environments.local import LocalEnvironment
from core.environments.lsf import LSFEnvironment
from core.environments.mpi import MPICHEnvironment, OpenMPIEnvironment
from core.environments.plain import PlainEnvironment
from core.environments.pmix import PMIxEnvironment
from core.environments.slurm import SlurmEnvironment
from core.environments.torchelastic import TorchElasticEnvironment
from core.utilities.lazy import lazy_names

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
