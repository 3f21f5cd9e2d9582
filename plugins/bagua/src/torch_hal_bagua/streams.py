"""Order between the work that threads put on one device's streams; does nothing on a device without streams."""

from __future__ import annotations

import torch

__all__ = ["DeviceOrder"]


class DeviceOrder:
    """Lets a thread wait until the device has finished the work of another thread.

    Args:
        device: The process's device.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        current = torch.accelerator.current_accelerator()
        self._has_streams = device.type != "cpu" and current is not None and current.type == device.type

    def mark(self) -> torch.Event | None:
        """Record an event after all work that this thread has put on the device so far."""
        if not self._has_streams:
            return None
        event = torch.Event(self.device)
        event.record(torch.accelerator.current_stream(self.device))
        return event

    @staticmethod
    def wait(mark: torch.Event | None) -> None:
        """Block this thread until the device has reached ``mark``."""
        if mark is not None:
            mark.synchronize()

    def finish(self) -> None:
        """Block this thread until the device has finished this thread's work."""
        self.wait(self.mark())

    def enter_thread(self) -> None:
        """In a new thread: use a separate stream of the device, in parallel with other threads."""
        if self._has_streams:
            torch.accelerator.set_device_index(self.device)
            torch.accelerator.set_stream(torch.Stream(self.device))
