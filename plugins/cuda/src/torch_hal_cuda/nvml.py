"""NVIDIA's management library through ctypes: lists GPUs without starting CUDA.

A process that has started CUDA holds memory on GPUs and can no longer fork; this library avoids both.
"""

from __future__ import annotations

import ctypes
import sys

from torch_hal_cuda.visible import Gpu, MigInstance

__all__ = ["NAME", "NVMLError", "gpus"]

NAME = "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"
"""The library's file name."""

_SUCCESS, _NOT_SUPPORTED, _NO_PERMISSION, _NOT_FOUND, _DRIVER_NOT_LOADED = 0, 3, 4, 6, 9
_UUID_LENGTH = 96


class NVMLError(RuntimeError):
    """The driver cannot list its GPUs."""

    def __init__(self, function: str, status: int, meaning: str) -> None:
        super().__init__(f"{NAME}: {function} failed with status {status} ({meaning})")
        self.status = status


def gpus() -> list[Gpu] | None:
    """Return the GPUs of this machine that this process can use, in the driver's order.

    Returns:
        ``None`` if there is no such library, or no driver for it.

    Raises:
        NVMLError: The driver fails, such as after an update without a restart.
    """
    try:
        library = ctypes.CDLL(NAME)
    except OSError:
        return None
    nvml = _Library(library)
    try:
        nvml.call("nvmlInit_v2")
    except NVMLError as error:
        if error.status == _DRIVER_NOT_LOADED:
            return None
        raise
    try:
        return nvml.gpus()
    finally:
        nvml.call("nvmlShutdown")


class _Library:
    """The functions of the library that are used here."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def call(self, function: str, *arguments: object) -> None:
        status = getattr(self._library, function)(*arguments)
        if status != _SUCCESS:
            raise NVMLError(function, status, self._meaning(status))

    def gpus(self) -> list[Gpu]:
        found = []
        for index in range(self._number("nvmlDeviceGetCount_v2")):
            try:
                handle = self._handle("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index))
            except NVMLError as error:
                if error.status == _NO_PERMISSION:  # another container's
                    continue
                raise
            found.append(Gpu(self._uuid(handle), self._instances(handle)))
        return found

    def _instances(self, handle: ctypes.c_void_p) -> list[MigInstance] | None:
        mode, pending = ctypes.c_uint(), ctypes.c_uint()
        try:
            self.call("nvmlDeviceGetMigMode", handle, ctypes.byref(mode), ctypes.byref(pending))
        except NVMLError as error:
            if error.status == _NOT_SUPPORTED:
                return None
            raise
        except AttributeError:  # a library older than MIG
            return None
        if not mode.value:
            return None
        found = []
        for index in range(self._number("nvmlDeviceGetMaxMigDeviceCount", handle)):
            try:
                instance = self._handle("nvmlDeviceGetMigDeviceHandleByIndex", handle, ctypes.c_uint(index))
            except NVMLError as error:
                if error.status in (_NOT_FOUND, _NO_PERMISSION):  # not created, or another container's
                    continue
                raise
            numbers = [self._number(f"nvmlDeviceGet{kind}InstanceId", instance) for kind in ("Gpu", "Compute")]
            found.append(MigInstance(self._uuid(instance), *numbers))
        return found

    def _number(self, function: str, *arguments: object) -> int:
        number = ctypes.c_uint()
        self.call(function, *arguments, ctypes.byref(number))
        return number.value

    def _handle(self, function: str, *arguments: object) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        self.call(function, *arguments, ctypes.byref(handle))
        return handle

    def _uuid(self, handle: ctypes.c_void_p) -> str:
        text = ctypes.create_string_buffer(_UUID_LENGTH)
        self.call("nvmlDeviceGetUUID", handle, text, ctypes.c_uint(_UUID_LENGTH))
        return text.value.decode()

    def _meaning(self, status: int) -> str:
        self._library.nvmlErrorString.restype = ctypes.c_char_p
        text: bytes = self._library.nvmlErrorString(status)
        return text.decode(errors="replace")
