"""Backends for tests of resolution: hardware that is there, is not there or is broken, on the CPU in truth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from core import Accelerator, ClusterEnvironment, Plan, Request, resolve
from core.checkpoints import TorchCheckpointIO
from core.errors import BackendError, ConfigurationError, CoreError, DeviceError, UnknownNameError, WrongTypeError
from core.plan import Choice

__all__ = [
    "ORDER",
    "TORCHRUN",
    "AbsentAccelerator",
    "BrokenAccelerator",
    "ForeignEnvironment",
    "MyIO",
    "TwoAccelerator",
    "rejected",
    "plan_of",
    "refuse",
]

ORDER = ("torchelastic", "kubeflow", "lsf", "openmpi", "mpich", "pmix", "slurm", "plain", "local")
"""Core's cluster environments, in the order in which they are asked."""
TORCHRUN = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "0",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}
"""What torchrun sets in the second of two processes."""


def plan_of(environ: dict[str, str] | None = None, **arguments: Any) -> Plan:
    """The Plan of these arguments with these environment variables, and no others."""
    return resolve(Request.read(environ=environ or {}, **arguments))


def rejected(choice: Choice) -> dict[str, str]:
    """By name, why each candidate was not chosen."""
    return {candidate.name: candidate.reason for candidate in choice.rejected}


class TwoAccelerator(Accelerator):
    """Two devices are there."""

    def is_available(self) -> bool:
        return True

    def auto_device_count(self) -> int:
        return 2

    def get_parallel_devices(self, devices: list[int]) -> list[torch.device]:
        return [torch.device("cpu") for _ in devices]


class AbsentAccelerator(TwoAccelerator):
    """No device is there."""

    def is_available(self) -> bool:
        return False


class BrokenAccelerator(TwoAccelerator):
    """It cannot be asked."""

    def is_available(self) -> bool:
        raise OSError("the driver does not answer")


class MyIO(TorchCheckpointIO):
    """A checkpoint format of the user's."""


class ForeignEnvironment(ClusterEnvironment):
    """A cluster that started this process as the only one."""

    creates_processes_externally = True
    main_address = "127.0.0.1"
    main_port = 29500
    world_size = local_world_size = 1
    global_rank = local_rank = node_rank = 0

    @staticmethod
    def detect(environ: Any = None) -> bool:
        return "FOREIGN_JOB" in (environ or {})


PYTHON_S = {
    UnknownNameError: ValueError,
    ConfigurationError: ValueError,
    DeviceError: ValueError,
    WrongTypeError: TypeError,
    BackendError: RuntimeError,
}
"""By error, the class of Python's own that code may catch instead."""


def refuse(
    front_end: Callable[..., Any], arguments: dict[str, Any], error: type[CoreError], fragments: tuple[str, ...]
) -> None:
    """See the constructor raise that error, with all that its message must say."""
    with pytest.raises(error) as caught:
        front_end(**arguments)
    assert isinstance(caught.value, PYTHON_S[error])
    for fragment in fragments:
        assert fragment in str(caught.value), str(caught.value)
