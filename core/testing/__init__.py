"""The conformance kit: tests of what core guarantees to users of a backend, for vendors to run.

``pytest -p core.testing.plugin --pyargs core.testing.suite --backend accelerator:acme`` needs no code. The suites here
can also be subclassed and their fixtures overridden. Importing this package imports neither torch nor pytest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..utilities.lazy import lazy_names

if TYPE_CHECKING:
    from .backend import BackendUnderTest
    from .kit import check_backends
    from .marks import not_run, skip_by_declaration, tier
    from .suites.accelerator import AcceleratorSuite
    from .suites.base import Suite
    from .suites.checkpoint_io import CheckpointIOSuite
    from .suites.cluster_environment import Cluster, ClusterEnvironmentSuite
    from .suites.precision import PrecisionSuite
    from .suites.strategy import StrategySuite

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
        "not_run": "core.testing.marks",
        "skip_by_declaration": "core.testing.marks",
        "tier": "core.testing.marks",
    },
)
