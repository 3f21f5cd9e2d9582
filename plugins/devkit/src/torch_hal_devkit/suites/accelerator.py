"""The suite of accelerators."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar

import pytest

from torch_hal import Request, resolve
from torch_hal.discovery.registry import Registry
from torch_hal_devkit.backend import BackendUnderTest
from torch_hal_devkit.suites.base import Suite
from torch_hal_devkit.suites.collectives import CollectiveTests
from torch_hal_devkit.suites.contract_of_runs import ContractOfRunsTests
from torch_hal_devkit.suites.device import DeviceTests
from torch_hal_devkit.suites.device_algebra import DeviceAlgebraTests
from torch_hal_devkit.suites.distributed_training import DistributedTrainingTests
from torch_hal_devkit.suites.each_device import EachDeviceTests
from torch_hal_devkit.suites.failing import FailureTests
from torch_hal_devkit.suites.hardware import HardwareTests
from torch_hal_devkit.suites.importing import ImportTests
from torch_hal_devkit.suites.metadata import MetadataTests
from torch_hal_devkit.suites.modules import ModuleTests
from torch_hal_devkit.suites.steps import StepTests
from torch_hal_devkit.suites.training import TrainingTests

__all__ = ["AcceleratorSuite", "counted", "named_accelerator", "present_accelerator"]


class AcceleratorSuite(
    MetadataTests,
    ImportTests,
    HardwareTests,
    DeviceTests,
    EachDeviceTests,
    DeviceAlgebraTests,
    TrainingTests,
    CollectiveTests,
    DistributedTrainingTests,
    StepTests,
    ModuleTests,
    ContractOfRunsTests,
    FailureTests,
    Suite,
):
    """The conformance suite of accelerators."""

    kind: ClassVar[str] = "accelerator"

    @pytest.fixture
    def unsupported(self, backend: BackendUnderTest) -> Mapping[str, str]:
        """The accelerator's own declaration."""
        unsupported: Mapping[str, str] = backend.load().unsupported
        return unsupported

    @pytest.fixture
    def devices(self, backend: BackendUnderTest) -> int | None:
        """The number that the accelerator counts; ``None`` if any number of processes shares the hardware."""
        return counted(backend)

    @pytest.fixture
    def arguments(self, backend: BackendUnderTest) -> Mapping[str, Any]:
        """The accelerator with its own default strategy for several processes."""
        return {"accelerator": backend.name}


def counted(backend: BackendUnderTest) -> int | None:
    """The number of devices of an accelerator; ``None`` if any number of processes shares the hardware."""
    accelerator: Any = backend.create()
    if not accelerator.is_available():
        return 0
    count: int | None = None if accelerator.device_limit() is None else accelerator.auto_device_count()
    return count


def present_accelerator(backend: BackendUnderTest) -> BackendUnderTest:
    """What ``accelerator="auto"`` means on this machine, for the suites of other kinds."""
    return _accelerator("auto", tuple(backend.environ.items()))


def named_accelerator(name: str, backend: BackendUnderTest) -> BackendUnderTest:
    """The accelerator of that name, for the suites of other kinds."""
    return _accelerator(name, tuple(backend.environ.items()))


@cache  # asking the machine takes longer than most tests
def _accelerator(name: str, environ: tuple[tuple[str, str], ...]) -> BackendUnderTest:
    variables = dict(environ)
    if name == "auto":
        registry = Registry.read(variables, is_trusted=True)
        name = resolve(Request.read(environ=variables), registry).accelerator.name
    return BackendUnderTest.find("accelerator", name, variables)
