"""Copying batches to the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..accelerators.base import device_function
from ..utilities.nested import map_tensors


class Transfer:
    """Copies batches to ``device``; on a separate stream where the device has streams.

    :meth:`start` begins a copy, which runs while the device computes; :meth:`finish` makes the device's current stream
    wait for it, not the host.

    Args:
        device: Where batches go.
        non_blocking: Whether the host goes on while a batch is copied.
    """

    def __init__(self, device: torch.device, non_blocking: bool) -> None:
        self.device, self.non_blocking = device, non_blocking
        self._enter: Callable[[Any], Any] | None = device_function(device.type, "stream")
        self._current: Callable[[Any], Any] | None = device_function(device.type, "current_stream")
        make = device_function(device.type, "Stream")
        self._stream: Any = None
        if non_blocking and _is_accelerator(device) and None not in (make, self._enter, self._current):
            self._stream = make(device)  # type: ignore[misc]

    @property
    def overlaps(self) -> bool:
        """Whether copies run next to what the device computes."""
        return self._stream is not None

    def start(self, batch: Any) -> Any:
        """Begin to copy every tensor of ``batch``; returns the copy, to be used after :meth:`finish`."""
        if self._stream is None:
            return map_tensors(self._copy, batch)
        with self._enter(self._stream):  # type: ignore[misc]
            return map_tensors(self._copy, batch)

    def finish(self, batch: Any) -> Any:
        """Let what the device does from now on use ``batch``, which :meth:`start` returned."""
        if self._stream is not None:
            current = self._current(self.device)  # type: ignore[misc]
            current.wait_stream(self._stream)

            def record(tensor: Tensor) -> Tensor:
                # Else the memory could be given away while the current stream still uses it.
                tensor.record_stream(current)
                return tensor

            map_tensors(record, batch)
        return batch

    def _copy(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device, non_blocking=self.non_blocking)


def _is_accelerator(device: torch.device) -> bool:
    """Whether torch drives ``device`` through :mod:`torch.accelerator`: it makes streams for no other."""
    current = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return current is not None and current.type == device.type
