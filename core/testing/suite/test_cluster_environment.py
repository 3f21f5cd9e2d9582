"""What is asked of every backend of the kind ``cluster_environment``."""

from __future__ import annotations

from ..suites.cluster_environment import ClusterEnvironmentSuite


class TestClusterEnvironment(ClusterEnvironmentSuite):
    """The suite as it is."""
