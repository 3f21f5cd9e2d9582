"""Asking Level Zero, the interface of Intel's driver, for its GPUs; nothing is computed on them."""

from __future__ import annotations

import ctypes
import sys

__all__ = ["NAME", "gpus", "is_initialized"]

NAME = "ze_loader.dll" if sys.platform == "win32" else "libze_loader.so.1"
"""The library that loads the driver."""

_initialized = False

_SUCCESS, _UNINITIALIZED = 0, 0x78000001
_ONLY_GPUS = 1  # of zeInit
_GPU = 1  # ze_device_type_t
_DEVICE_PROPERTIES = 0x3  # ze_structure_type_t
_INTEGRATED = 1  # ze_device_property_flags_t


class _DeviceProperties(ctypes.Structure):
    """The beginning of ``ze_device_properties_t``, and room for the rest."""

    _fields_ = (
        ("stype", ctypes.c_uint32),
        ("next", ctypes.c_void_p),
        ("type", ctypes.c_uint32),
        ("vendor", ctypes.c_uint32),
        ("device", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("rest", ctypes.c_char * 1024),
    )


def gpus() -> list[bool] | None:
    """Return for each GPU whether it is integrated; ``None`` without the library.

    Raises:
        RuntimeError: The driver fails.
    """
    try:
        library = ctypes.CDLL(NAME)
    except OSError:
        return None
    global _initialized
    status = library.zeInit(_ONLY_GPUS)
    if status & 0xFFFFFFFF == _UNINITIALIZED:  # no driver for any device
        return []
    _check(status, "zeInit")
    _initialized = True
    return [
        is_integrated
        for driver in _handles(library, "zeDriverGet")
        for device in _handles(library, "zeDeviceGet", driver)
        if (is_integrated := _is_integrated_gpu(library, device)) is not None
    ]


def is_initialized() -> bool:
    """Return whether :func:`gpus` has initialized the driver in this process."""
    return _initialized


def _handles(library: ctypes.CDLL, function: str, *arguments: ctypes.c_void_p) -> list[ctypes.c_void_p]:
    """What the function lists: it is called for the number, then for the handles."""
    number = ctypes.c_uint32(0)
    _check(getattr(library, function)(*arguments, ctypes.byref(number), None), function)
    handles = (ctypes.c_void_p * number.value)()
    _check(getattr(library, function)(*arguments, ctypes.byref(number), handles), function)
    return [ctypes.c_void_p(handle) for handle in handles[: number.value]]


def _is_integrated_gpu(library: ctypes.CDLL, device: ctypes.c_void_p) -> bool | None:
    """Whether a GPU is integrated; ``None`` for another kind of device."""
    properties = _DeviceProperties(stype=_DEVICE_PROPERTIES)
    _check(library.zeDeviceGetProperties(device, ctypes.byref(properties)), "zeDeviceGetProperties")
    return bool(properties.flags & _INTEGRATED) if properties.type == _GPU else None


def _check(status: int, function: str) -> None:
    if status != _SUCCESS:
        raise RuntimeError(f"{NAME}: {function} failed with status {status & 0xFFFFFFFF:#x}")
