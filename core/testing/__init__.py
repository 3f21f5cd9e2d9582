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
        "AcceleratorSuite": "torch_hal.testing.suites.accelerator",
        "BackendUnderTest": "torch_hal.testing.backend",
        "CheckpointIOSuite": "torch_hal.testing.suites.checkpoint_io",
        "Cluster": "torch_hal.testing.suites.cluster_environment",
        "ClusterEnvironmentSuite": "torch_hal.testing.suites.cluster_environment",
        "PrecisionSuite": "torch_hal.testing.suites.precision",
        "StrategySuite": "torch_hal.testing.suites.strategy",
        "Suite": "torch_hal.testing.suites.base",
        "check_backends": "torch_hal.testing.kit",
        "not_run": "torch_hal.testing.marks",
        "skip_by_declaration": "torch_hal.testing.marks",
        "tier": "torch_hal.testing.marks",
    },
)
