"""Cluster environments: they tell a process its ranks and the address at which the processes meet."""

from ..utilities.lazy import lazy_names
from .base import ClusterEnvironment, LaunchedEnvironment, RankVariables, whole_number
from .job_schedulers import LSFEnvironment, MPICHEnvironment, OpenMPIEnvironment, PMIxEnvironment, SlurmEnvironment
from .local import LocalEnvironment
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
