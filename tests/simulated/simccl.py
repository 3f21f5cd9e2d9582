"""A collective backend for the simulated device, as a vendor brings its own: gloo over the memory shared with the host.

A collective is done when its call returns. ``isend`` and ``irecv`` are not, since two of them may wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from simdevice.tensors import host_view, module, on_device
from torch import Tensor
from torch.futures import Future

__all__ = ["SimCCL", "register"]

_COLLECTIVES = """
    allreduce allreduce_coalesced broadcast reduce barrier gather scatter alltoall alltoall_base all_to_all_single
    allgather allgather_coalesced _allgather_base all_gather_single all_gather_single_coalesced
    allgather_into_tensor_coalesced reduce_scatter _reduce_scatter_base reduce_scatter_single
    reduce_scatter_single_coalesced reduce_scatter_tensor_coalesced
"""
_POINT_TO_POINT = ("send", "recv", "recv_anysource")


def register(device_type: str) -> None:
    """Make ``simccl`` the ``torch.distributed`` backend of ``device_type``."""
    dist.Backend.register_backend("simccl", SimCCL, devices=[device_type])


class _Done(dist.Work):
    """Work that is done, with its result."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self._future: Future[Any] = Future()
        self._future.set_result(result)

    def wait(self, timeout: timedelta | None = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def get_future(self) -> Future[Any]:
        return self._future


class SimCCL(dist.ProcessGroup):
    """The process group: tensors of the host go to gloo, tensors of the device too, by the bytes they share with it."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]
        gloo = dist.ProcessGroupGloo(store, rank, size, timeout)
        self._host = dist.ProcessGroup(store, rank, size)
        self._host._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)
        self._host._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
        for device_type in ("cpu", module().name):
            # torch asks the backend of each type what it can do, such as splitting.
            self._register_backend(torch.device(device_type), dist.ProcessGroup.BackendType.GLOO, gloo)

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return "simccl"


def _to_host(value: Any) -> Any:
    if isinstance(value, Tensor):
        return host_view(value) if on_device(value) else value
    if isinstance(value, list | tuple):
        return [_to_host(item) for item in value]
    return value


def _on_host(name: str, *, wait: bool) -> Callable[..., dist.Work]:
    def method(group: SimCCL, *args: Any, **kwargs: Any) -> dist.Work:
        kwargs = {key: _to_host(value) for key, value in kwargs.items()}
        work: dist.Work = getattr(group._host, name)(*_to_host(args), **kwargs)
        if not wait:
            return work
        work.wait()
        return _Done(args[0] if args else None)

    return method


for _name in filter(dist.ProcessGroup.__dict__.__contains__, _COLLECTIVES.split()):
    setattr(SimCCL, _name, _on_host(_name, wait=True))
for _name in _POINT_TO_POINT:
    setattr(SimCCL, _name, _on_host(_name, wait=False))
