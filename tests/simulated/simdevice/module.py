"""The device module: what a vendor puts at ``torch.<name>``."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

import torch

__all__ = ["DeviceModule", "DeviceLike"]

DeviceLike = torch.device | int | str | None


class _Current(threading.local):
    index = 0


class DeviceModule:
    """State of the simulated devices of one process: which is current, their generators, memory in use."""

    def __init__(self, name: str, devices: int) -> None:
        self.name = name
        self._current = _Current()
        self._process: int | None = None
        self._generators = [torch.Generator() for _ in range(devices)]
        self._allocated = [0] * devices
        self._peak = [0] * devices
        self.synchronized: list[int] = []
        """Indices of the devices that were waited for, in order: a record for tests."""
        self.manual_seed_all(torch.initial_seed())

        class device:  # noqa: N801 - the name that torch looks for
            """Context in which another device is the current one."""

            def __init__(context, device: DeviceLike) -> None:  # noqa: N805
                context.index = self.index_of(device)

            def __enter__(context) -> None:  # noqa: N805
                context.before = self.current_device()
                self.set_device(context.index)

            def __exit__(context, *exc: object) -> None:  # noqa: N805
                self.set_device(context.before)

        self.device = device

    def index_of(self, device: DeviceLike) -> int:
        """The index that ``device`` means; the current one where it has none."""
        if isinstance(device, str):
            device = torch.device(device)
        index = device.index if isinstance(device, torch.device) else device
        if index is None:
            index = self.current_device()
        if not 0 <= index < self.device_count():
            raise RuntimeError(f"{self.name}: no device {index}, there are {self.device_count()}")
        return index

    def is_available(self) -> bool:
        return self.device_count() > 0

    def is_initialized(self) -> bool:
        """Whether this process has put a tensor on a device."""
        return self._process == os.getpid()

    def _is_in_bad_fork(self) -> bool:
        return self._process not in (None, os.getpid())

    def initialize(self) -> None:
        """A tensor moves to a device; as with real hardware, not in a process forked from one that has used it."""
        if self._is_in_bad_fork():
            raise RuntimeError(f"Cannot re-initialize {self.name} in a forked process; use the 'spawn' start method")
        self._process = os.getpid()

    def device_count(self) -> int:
        return len(self._generators)

    def current_device(self) -> int:
        return self._current.index

    def set_device(self, device: DeviceLike) -> None:
        self._current.index = self.index_of(device)

    def synchronize(self, device: DeviceLike = None) -> None:
        self.synchronized.append(self.index_of(device))

    # -- random numbers ------------------------------------------------------------------------------------------

    def manual_seed(self, seed: int) -> None:
        self._generators[self.current_device()].manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        for generator in self._generators:
            generator.manual_seed(seed)

    def get_rng_state(self, device: DeviceLike = None) -> torch.Tensor:
        return self._generators[self.index_of(device)].get_state()

    def set_rng_state(self, new_state: torch.Tensor, device: DeviceLike = None) -> None:
        self._generators[self.index_of(device)].set_state(new_state)

    @contextlib.contextmanager
    def generator_of(self, index: int) -> Iterator[None]:
        """The host's kernels draw from the generator of device ``index``."""
        host = torch.default_generator.get_state()
        torch.default_generator.set_state(self._generators[index].get_state())
        try:
            yield
        finally:
            self._generators[index].set_state(torch.default_generator.get_state())
            torch.default_generator.set_state(host)

    # -- memory --------------------------------------------------------------------------------------------------

    def count_memory(self, index: int, nbytes: int) -> None:
        self._allocated[index] += nbytes
        self._peak[index] = max(self._peak[index], self._allocated[index])

    def memory_allocated(self, device: DeviceLike = None) -> int:
        return self._allocated[self.index_of(device)]

    def max_memory_allocated(self, device: DeviceLike = None) -> int:
        return self._peak[self.index_of(device)]

    def reset_peak_memory_stats(self, device: DeviceLike = None) -> None:
        index = self.index_of(device)
        self._peak[index] = self._allocated[index]

    def empty_cache(self) -> None:
        """There is no cache: memory goes back to the host at once."""

    # -- mixed precision -----------------------------------------------------------------------------------------

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]
