"""The way in and out of the device.

A tensor on the device is an ordinary ``torch.Tensor`` of the PrivateUse1 type whose bytes lie in host memory. It is
made through DLPack: the capsule of a host tensor, relabelled as an extension device, comes back as a tensor of that
type on the given index, and the other way round. Neither copies a byte.
"""

from __future__ import annotations

import ctypes
import weakref

import torch
from torch import Tensor

from simdevice.module import DeviceModule

__all__ = ["device_view", "host_view", "module", "on_device", "set_module"]

_CPU_CODE, _EXTENSION_CODE = 1, 12

_module: DeviceModule | None = None


def set_module(module: DeviceModule) -> None:
    """Install the devices that tensors live on."""
    global _module
    _module = module


def module() -> DeviceModule:
    """The devices that tensors live on."""
    assert _module is not None
    return _module


class _DLDevice(ctypes.Structure):
    _fields_ = (("code", ctypes.c_int32), ("index", ctypes.c_int32))


class _DLTensor(ctypes.Structure):
    # Only the beginning: what follows stays as it is.
    _fields_ = (("data", ctypes.c_void_p), ("device", _DLDevice))


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)


def _relabelled(tensor: Tensor, code: int, index: int) -> Tensor:
    capsule = torch._C._to_dlpack(tensor)
    header = _DLTensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    header.device.code, header.device.index = code, index
    return torch._C._from_dlpack(capsule)


def on_device(value: object) -> bool:
    """Whether ``value`` is a tensor on a simulated device."""
    return isinstance(value, Tensor) and value.device.type == module().name


def host_view(tensor: Tensor) -> Tensor:
    """A CPU tensor over the bytes of ``tensor``, which is on a simulated device."""
    return _relabelled(tensor, _CPU_CODE, 0)


def device_view(tensor: Tensor, index: int) -> Tensor:
    """A tensor on simulated device ``index`` over the bytes of ``tensor``, a CPU tensor; they count as its memory."""
    module().initialize()
    storage = tensor.untyped_storage()
    size = storage.nbytes()
    module().count_memory(index, size)
    weakref.finalize(storage, module().count_memory, index, -size).atexit = False
    return _relabelled(tensor, _EXTENSION_CODE, index)
