"""Cluster environments: who this process is among the others."""

from core.environments.base import ClusterEnvironment
from core.environments.launched import LaunchedEnvironment, RankVariables
from core.environments.local import LocalEnvironment
from core.environments.torchelastic import TorchElasticEnvironment

__all__ = ["ClusterEnvironment", "LaunchedEnvironment", "LocalEnvironment", "RankVariables", "TorchElasticEnvironment"]
