"""The conformance kit: what core promises its users of a backend, as tests that a vendor runs.

``pytest -p core.testing.plugin --pyargs core.testing.suite --backend accelerator:acme`` needs no code; the suites here
can also be derived from, and their fixtures overridden. Importing this package imports neither torch nor pytest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.lazy import lazy_names

if TYPE_CHECKING:
    from core.testing.backend import BackendUnderTest
    from core.testing.kit import check_backends
    from core.testing.suites.accelerator import AcceleratorSuite
    from core.testing.suites.base import Suite
    from core.testing.suites.checkpoint_io import CheckpointIOSuite
    from core.testing.suites.cluster_environment import Cluster, ClusterEnvironmentSuite
    from core.testing.suites.precision import PrecisionSuite
    from core.testing.suites.strategy import StrategySuite
    from core.testing.tiers import not_run, skip_by_declaration, tier

__all__ = [
    "AcceleratorSuite",
    "BackendUnderTest",
    "CheckpointIOSuite",
    "Cluster",
    "ClusterEnvironmentSuite",
    "PrecisionSuite",
    "StrategySuite",
    "Suite",
    "check_backends",
    "not_run",
    "skip_by_declaration",
    "tier",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "AcceleratorSuite": "core.testing.suites.accelerator",
        "BackendUnderTest": "core.testing.backend",
        "CheckpointIOSuite": "core.testing.suites.checkpoint_io",
        "Cluster": "core.testing.suites.cluster_environment",
        "ClusterEnvironmentSuite": "core.testing.suites.cluster_environment",
        "PrecisionSuite": "core.testing.suites.precision",
        "StrategySuite": "core.testing.suites.strategy",
        "Suite": "core.testing.suites.base",
        "check_backends": "core.testing.kit",
        "not_run": "core.testing.tiers",
        "skip_by_declaration": "core.testing.tiers",
        "tier": "core.testing.tiers",
    },
)
