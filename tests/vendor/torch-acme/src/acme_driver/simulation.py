"""Starting the simulation in this process."""

from __future__ import annotations

import atexit

import torch
from torch.utils.backend_registration import generate_methods_for_privateuse1_backend, rename_privateuse1_backend

from acme_driver import accl, build
from acme_driver.module import DeviceModule

__all__ = ["start"]

_KNOWN_TO_TORCH = ("hpu", "ipu", "mps", "xla", "xpu")

_started: dict[tuple[str, int, str, int], DeviceModule] = {}


def start(device_type: str, devices: int, collectives: str, memory_per_device: int) -> DeviceModule:
    """See :func:`acme_driver.simulate`."""
    arguments = (device_type, devices, collectives, memory_per_device)
    if arguments in _started:
        return _started[arguments]
    if _started:
        (there,) = _started
        raise RuntimeError(f"this process simulates {there[1]} devices of type {there[0]!r} already")
    native = build.load()
    if device_type not in _KNOWN_TO_TORCH:
        rename_privateuse1_backend(device_type)
    native.start(torch.device(device_type), devices, memory_per_device)
    atexit.register(native.await_autograd_threads)
    module = DeviceModule(device_type, devices, native)
    if device_type not in _KNOWN_TO_TORCH:
        generate_methods_for_privateuse1_backend()
    if device_type == "mps":
        torch._C._has_mps = True  # that torch was built with it, which its Python asks first
    if device_type == "xpu":
        _take_the_place_of_torch_xpu(module)
    elif not hasattr(torch, device_type):
        torch._register_device_module(device_type, module)  # type: ignore[no-untyped-call]
    if torch.distributed.is_available():
        accl.register(collectives, device_type, native)
    _started[arguments] = module
    return module


def _take_the_place_of_torch_xpu(module: DeviceModule) -> None:
    """Give ``torch.xpu`` the simulated devices: torch's own module calls what only builds for XPU have."""
    for name in vars(DeviceModule):
        if not name.startswith("__") and callable(getattr(module, name)):
            setattr(torch.xpu, name, getattr(module, name))
