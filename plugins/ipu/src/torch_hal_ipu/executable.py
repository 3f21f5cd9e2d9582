"""A compiled step for the current batch's shapes, and its use of the devices."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from torch_hal.errors import ConfigurationError
from torch_hal.utilities.nested import map_tensors
from torch_hal_ipu.tracing import TracedStep

__all__ = ["Devices", "Executable", "first_dimension", "joined"]

_log = logging.getLogger(__name__)


class Devices:
    """The machine's IPUs, to which one executable at a time is attached."""

    def __init__(self) -> None:
        self._holder: Executable | None = None

    def give_to(self, executable: Executable) -> None:
        """Detach the current executable, unless it is ``executable``, which attaches itself when it is called."""
        if self._holder is not executable:
            self.release()
            self._holder = executable

    def release(self) -> None:
        """Detach the current executable; weights and optimizer state are copied to the host."""
        if self._holder is not None:
            self._holder.detach()
        self._holder = None


class Executable:
    """A step that is compiled for the shapes of its first batch, and again if the shapes change.

    Args:
        devices: The devices that it runs on.
        step: The step to compile.
        build: ``build(step, items, batches)`` returns the executor for calls with these numbers of items and batches of
            the loader.
    """

    def __init__(self, devices: Devices, step: TracedStep, build: Callable[[TracedStep, int, int], Any]) -> None:
        self._devices = devices
        self._step = step
        self._build = build
        self._executor: Any = None
        self._shapes: Any = None
        self._is_ahead = False
        """Whether the devices' weights are newer than the host's."""

    def __call__(self, batch: Any, batches: int = 1) -> Any:
        """Run the step on ``batch``, the concatenation of ``batches`` batches of the loader."""
        items = first_dimension(batch)
        # The Trainer evaluates in inference mode, and training cannot use tensors created there.
        with torch.inference_mode(False), torch.no_grad():
            self._prepare(batch, items, batches)
            self._devices.give_to(self)
            self._is_ahead = True
            results = self._executor(batch)
        return self._step.finish(results, items)

    def set_optimizer(self, optimizer: Any) -> None:
        """Apply an optimizer's settings if the step is compiled; otherwise it will be compiled with them."""
        if self._executor is not None:
            self._executor.setOptimizer(optimizer)

    def copy_weights_to_host(self) -> None:
        """Copy the devices' weights to the host, if they are newer."""
        if self._is_ahead and self._executor is not None and self._executor.isAttachedToDevice():
            self._executor.copyWeightsToHost()
            self._is_ahead = False

    def detach(self) -> None:
        """Detach from the devices; the step stays compiled."""
        if self._executor is not None and self._executor.isAttachedToDevice():
            self._executor.detachFromDevice()
        self._is_ahead = False

    def destroy(self) -> None:
        """Detach from the devices and discard the compiled step."""
        if self._executor is not None:
            self._executor.destroy()
        self._executor = None
        self._is_ahead = False

    def _prepare(self, batch: Any, items: int, batches: int) -> None:
        shapes = batches, tuple((tensor.shape, tensor.dtype) for tensor in _tensors(batch))
        if shapes == self._shapes and self._executor is not None:
            return
        if self._executor is not None:
            _log.warning(
                "compiling the step again for a batch of %d items; drop_last=True on the loader avoids it",
                items,
            )
        self.destroy()
        self._devices.release()
        self._executor = self._build(self._step, items, batches)
        self._shapes = shapes


def first_dimension(batch: Any) -> int:
    """Return the number of items of ``batch``: the first dimension of its first tensor that is not a scalar.

    Raises:
        ConfigurationError: ``batch`` has no such tensor.
    """
    for tensor in _tensors(batch):
        if tensor.dim():
            return tensor.shape[0]
    raise ConfigurationError(
        f"strategy='ipu': the batch, a {type(batch).__name__}, has no tensor with a batch dimension. Use tensors, "
        "nested in any way, with the items along the first dimension."
    )


def joined(batches: list[Any]) -> Any:
    """Concatenate the tensors of batches of the same structure along the first dimension."""
    if len(batches) == 1:
        return batches[0]
    columns: Iterator[tuple[Tensor, ...]] = zip(*(_tensors(batch) for batch in batches), strict=True)
    return map_tensors(lambda _: torch.cat(next(columns)), batches[0])


def _tensors(batch: Any) -> list[Tensor]:
    found: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    map_tensors(keep, batch)
    return found
