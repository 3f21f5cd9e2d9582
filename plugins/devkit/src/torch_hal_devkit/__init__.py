"""The conformance kit: tests of what torch-hal guarantees to users of a backend, for vendors to run.

``pytest -p torch_hal_devkit.plugin --pyargs torch_hal_devkit.suite --backend accelerator:acme`` needs no code. The
suites here can also be subclassed and their fixtures overridden. Importing this package imports neither torch nor
pytest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_hal.utilities.lazy import lazy_names

if TYPE_CHECKING:
    from torch_hal_devkit.backend import BackendUnderTest
    from torch_hal_devkit.kit import check_backends
    from torch_hal_devkit.marks import not_run, skip_by_declaration, tier
    from torch_hal_devkit.suites.accelerator import AcceleratorSuite
    from torch_hal_devkit.suites.base import Suite
    from torch_hal_devkit.suites.checkpoint_io import CheckpointIOSuite
    from torch_hal_devkit.suites.cluster_environment import Cluster, ClusterEnvironmentSuite
    from torch_hal_devkit.suites.precision import PrecisionSuite
    from torch_hal_devkit.suites.strategy import StrategySuite

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
        "AcceleratorSuite": "torch_hal_devkit.suites.accelerator",
        "BackendUnderTest": "torch_hal_devkit.backend",
        "CheckpointIOSuite": "torch_hal_devkit.suites.checkpoint_io",
        "Cluster": "torch_hal_devkit.suites.cluster_environment",
        "ClusterEnvironmentSuite": "torch_hal_devkit.suites.cluster_environment",
        "PrecisionSuite": "torch_hal_devkit.suites.precision",
        "StrategySuite": "torch_hal_devkit.suites.strategy",
        "Suite": "torch_hal_devkit.suites.base",
        "check_backends": "torch_hal_devkit.kit",
        "not_run": "torch_hal_devkit.marks",
        "skip_by_declaration": "torch_hal_devkit.marks",
        "tier": "torch_hal_devkit.marks",
    },
)
