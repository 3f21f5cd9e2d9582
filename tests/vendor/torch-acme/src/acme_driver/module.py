"""The device module: what a vendor puts at ``torch.<type>``."""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

import torch

__all__ = ["DeviceLike", "DeviceModule"]

DeviceLike = torch.device | int | str | None


class DeviceModule(ModuleType):
    """The simulated devices of this process."""

    Stream = torch.Stream
    Event = torch.Event

    def __init__(self, device_type: str, devices: int, native: Any) -> None:
        super().__init__(f"torch.{device_type}", f"Simulated devices of type {device_type!r}.")
        self.device_type = device_type
        self._devices = devices
        self._native = native

        class device:  # noqa: N801 - the name that torch looks for
            """Context in which another device is the current one."""

            def __init__(context, device: DeviceLike) -> None:  # noqa: N805
                context.index = self._index(device)

            def __enter__(context) -> None:  # noqa: N805
                context.before = self.current_device()
                self.set_device(context.index)

            def __exit__(context, *exc: object) -> None:  # noqa: N805
                self.set_device(context.before)

        self.device = device

    def _index(self, device: DeviceLike) -> int:
        """The index that ``device`` means; the current one where it has none."""
        if isinstance(device, str):
            device = torch.device(device)
        if isinstance(device, torch.device):
            if device.type != self.device_type:
                raise ValueError(f"device={device}: expected one of type {self.device_type!r}")
            device = device.index
        index = self.current_device() if device is None else device
        if not 0 <= index < self._devices:
            raise RuntimeError(f"{self.device_type}: no device {index}, there are {self._devices}")
        return index

    # -- devices -------------------------------------------------------------------------------------------------

    def is_available(self) -> bool:
        """Whether there is a device."""
        return self._devices > 0

    def device_count(self) -> int:
        """How many devices there are."""
        return self._devices

    def current_device(self) -> int:
        """The index of this thread's current device."""
        return int(self._native.current_device())

    def set_device(self, device: DeviceLike) -> None:
        """Make ``device`` this thread's current one."""
        self._native.set_device(self._index(device))

    def get_device_name(self, device: DeviceLike = None) -> str:
        """What kind of card it is."""
        return f"simulated {self.device_type} {self._index(device)}"

    def init(self) -> None:
        """Take the devices into use by this process."""
        self._native.init()

    _lazy_init = init

    def is_initialized(self) -> bool:
        """Whether this process has put a tensor on a device."""
        return bool(self._native.in_use_by() == os.getpid())

    def _is_in_bad_fork(self) -> bool:
        return self._native.in_use_by() not in (0, os.getpid())

    def synchronize(self, device: DeviceLike = None) -> None:
        """Wait until ``device`` has done its work, as it always has; counted."""
        self._native.synchronize(self._index(device))

    def synchronizations(self, device: DeviceLike = None) -> int:
        """How often ``device`` was waited for: a record for tests."""
        return int(self._native.synchronizations(self._index(device)))

    def current_stream(self, device: DeviceLike = None) -> torch.Stream:
        """This thread's current stream of ``device``."""
        return torch.accelerator.current_stream(self._index(device))

    def set_stream(self, stream: torch.Stream) -> None:
        """Make ``stream`` this thread's current one of its device."""
        torch.accelerator.set_stream(stream)

    def stream(self, stream: torch.Stream) -> torch.Stream:
        """Context in which ``stream`` is the current one."""
        return stream

    # -- random numbers ------------------------------------------------------------------------------------------

    @property
    def default_generators(self) -> tuple[torch.Generator, ...]:
        """The generator of each device."""
        return tuple(self._native.default_generator(index) for index in range(self._devices))

    def manual_seed(self, seed: int) -> None:
        """Seed the current device's generator."""
        self.default_generators[self.current_device()].manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        """Seed every device's generator."""
        for generator in self.default_generators:
            generator.manual_seed(seed)

    def initial_seed(self) -> int:
        """What the current device's generator was seeded with."""
        return self.default_generators[self.current_device()].initial_seed()

    def get_rng_state(self, device: DeviceLike = None) -> torch.Tensor:
        """The state of the generator of ``device``, a byte tensor on the CPU."""
        return self.default_generators[self._index(device)].get_state()

    def set_rng_state(self, new_state: torch.Tensor, device: DeviceLike = None) -> None:
        """Put the generator of ``device`` back into a state."""
        self.default_generators[self._index(device)].set_state(new_state)

    # -- memory --------------------------------------------------------------------------------------------------

    def memory_allocated(self, device: DeviceLike = None) -> int:
        """Bytes in use by tensors on ``device``."""
        return int(self._native.memory_allocated(self._index(device)))

    def max_memory_allocated(self, device: DeviceLike = None) -> int:
        """The most bytes that were in use at once."""
        return int(self._native.max_memory_allocated(self._index(device)))

    def memory_reserved(self, device: DeviceLike = None) -> int:
        """Bytes that torch holds: those in use, since nothing is cached."""
        return self.memory_allocated(device)

    max_memory_reserved = max_memory_allocated

    def reset_peak_memory_stats(self, device: DeviceLike = None) -> None:
        """Count the most bytes again."""
        self._native.reset_peak_memory_stats(self._index(device))

    def mem_get_info(self, device: DeviceLike = None) -> tuple[int, int]:
        """Bytes free, and bytes in total."""
        free, total = self._native.mem_get_info(self._index(device))
        return free, total

    def empty_cache(self) -> None:
        """There is no cache: memory goes back at once."""

    # -- mixed precision -----------------------------------------------------------------------------------------

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        """What autocast can compute in."""
        return [torch.bfloat16, torch.float16]
