"""What torch lets a backend give only in C++, done in Python where a training run needs it."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from simdevice.libraries import library
from simdevice.module import DeviceModule
from simdevice.tensors import device_view

__all__ = ["apply"]


def apply(module: DeviceModule) -> None:
    """Apply all of them."""
    _let_backward_reach_every_device()
    _let_storages_be_made(module)
    _let_host_memory_be_pinned()
    for name in ("set_device_index", "current_device_index", "synchronize", *_MEMORY):
        setattr(torch.accelerator, name, getattr(module, _RENAMED.get(name, name)))


_RENAMED = {"set_device_index": "set_device", "current_device_index": "current_device"}
_MEMORY = ("memory_allocated", "max_memory_allocated", "reset_peak_memory_stats", "empty_cache")


def _let_backward_reach_every_device() -> None:
    # torch counts one device for a backend whose guard is written in Python, and a backward that gets to a second one
    # stops on an internal assertion, unless it runs on the calling thread.
    run = torch.autograd.graph._engine_run_backward

    def on_calling_thread(*args: Any, **kwargs: Any) -> Any:
        with torch.autograd.set_multithreading_enabled(False), _PinnedOnRequest():  # type: ignore[no-untyped-call]
            return run(*args, **kwargs)

    torch.autograd.graph._engine_run_backward = on_calling_thread
    torch.autograd._engine_run_backward = on_calling_thread  # type: ignore[attr-defined]


class _PinnedOnRequest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """DistributedDataParallel asks C++ for pinned memory, to find unused parameters with."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not kwargs.get("pin_memory"):
            return func(*args, **kwargs)
        return _pinned(func(*args, **{**kwargs, "pin_memory": False}))


def _let_storages_be_made(module: DeviceModule) -> None:
    # torch has no allocator for the type, and crashes where a storage is made by size: deepcopy, torch.load.
    make = torch.UntypedStorage.__new__

    def on_any_device(cls: type, *args: Any, **kwargs: Any) -> Any:
        device = torch.device(kwargs.get("device") or "cpu")
        if device.type != module.name:
            return make(cls, *args, **kwargs)
        data = torch.empty(args[0] if args else 0, dtype=torch.uint8, device="cpu")
        return device_view(data, module.index_of(device)).untyped_storage()

    torch.UntypedStorage.__new__ = on_any_device  # type: ignore[method-assign]


_pinned_storages: set[int] = set()
"""Addresses of host memory that is to pass for pinned: torch has no pinned memory for a backend written in Python."""


def _pinned(tensor: Tensor) -> Tensor:
    storage = tensor.untyped_storage()
    _pinned_storages.add(storage.data_ptr())
    weakref.finalize(storage, _pinned_storages.discard, storage.data_ptr()).atexit = False
    return tensor


def _let_host_memory_be_pinned() -> None:
    def pin(tensor: Tensor, device: torch.device | None = None) -> Tensor:
        return _pinned(torch.empty_like(tensor).copy_(tensor))

    def is_pinned(tensor: Tensor, device: torch.device | None = None) -> bool:
        return tensor.untyped_storage().data_ptr() in _pinned_storages

    host = library("aten", "CPU")
    host.impl("_pin_memory", pin)
    host.impl("is_pinned", is_pinned)
