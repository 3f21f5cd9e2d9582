"""Order between what threads put on one device's streams; nothing where the device has none."""

from __future__ import annotations

import torch

__all__ = ["DeviceOrder"]


class DeviceOrder:
    """Lets a thread wait until a device has done what another thread asked of it.

    Args:
        device: The process's device.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        current = torch.accelerator.current_accelerator()
        self._has_streams = device.type != "cpu" and current is not None and current.type == device.type

    def mark(self) -> torch.Event | None:
        """A mark behind all that this thread has asked of the device so far."""
        if not self._has_streams:
            return None
        event = torch.Event(self.device)
        event.record(torch.accelerator.current_stream(self.device))
        return event

    @staticmethod
    def wait(mark: torch.Event | None) -> None:
        """Hold this thread until the device has come to ``mark``."""
        if mark is not None:
            mark.synchronize()

    def finish(self) -> None:
        """Hold this thread until the device has done what this thread has asked of it."""
        self.wait(self.mark())

    def enter_thread(self) -> None:
        """In a new thread: work on the device beside the other threads, on a stream of this thread's own."""
        if self._has_streams:
            torch.accelerator.set_device_index(self.device)
            torch.accelerator.set_stream(torch.Stream(self.device))
