"""What is asked of every backend of the kind ``cluster_environment``."""

from __future__ import annotations

from torch_hal_devkit.suites.cluster_environment import ClusterEnvironmentSuite


class TestClusterEnvironment(ClusterEnvironmentSuite):
    """The suite as it is."""
