"""One step's compiled form, for the batch at hand, and its turn on the devices."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from core.errors import ConfigurationError
from core.nested import map_tensors
from torch_hal_ipu.tracing import TracedStep

__all__ = ["Devices", "Executable", "first_dimension", "joined"]

_log = logging.getLogger(__name__)


class Devices:
    """The machine's IPUs, which one executable at a time is attached to."""

    def __init__(self) -> None:
        self._holder: Executable | None = None

    def give_to(self, executable: Executable) -> None:
        """Detach whoever holds them, unless it is ``executable``, which attaches by itself when it is called."""
        if self._holder is not executable:
            self.release()
            self._holder = executable

    def release(self) -> None:
        """Detach whoever holds them; weights and the optimizer's state come to the host."""
        if self._holder is not None:
            self._holder.detach()
        self._holder = None


class Executable:
    """A step that is compiled for the shapes of its first batch, and again where those change.

    Args:
        devices: Where it runs.
        step: What is compiled.
        build: ``build(step, items, batches)`` gives the executor for a call with so many items in so many batches of
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
        """What the step returns for ``batch``, which is ``batches`` batches of the loader, joined."""
        items = first_dimension(batch)
        # The Trainer evaluates in inference mode, and tensors that are made there are of no use to training afterwards.
        with torch.inference_mode(False), torch.no_grad():
            self._prepare(batch, items, batches)
            self._devices.give_to(self)
            self._is_ahead = True
            results = self._executor(batch)
        return self._step.finish(results, items)

    def set_optimizer(self, optimizer: Any) -> None:
        """Take over an optimizer's settings, where it is compiled; else it is compiled with them."""
        if self._executor is not None:
            self._executor.setOptimizer(optimizer)

    def copy_weights_to_host(self) -> None:
        """Make the host's weights those of the devices, where these are newer."""
        if self._is_ahead and self._executor is not None and self._executor.isAttachedToDevice():
            self._executor.copyWeightsToHost()
            self._is_ahead = False

    def detach(self) -> None:
        """Give the devices to somebody else; what is compiled stays so."""
        if self._executor is not None and self._executor.isAttachedToDevice():
            self._executor.detachFromDevice()
        self._is_ahead = False

    def destroy(self) -> None:
        """Give the devices back, and forget what was compiled."""
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
                "compiling again, since a batch of %d items follows other ones; drop_last=True on the loader avoids it",
                items,
            )
        self.destroy()
        self._devices.release()
        self._executor = self._build(self._step, items, batches)
        self._shapes = shapes


def first_dimension(batch: Any) -> int:
    """How many items ``batch`` has: the first dimension of its first tensor that has one.

    Raises:
        ConfigurationError: There is no such tensor.
    """
    for tensor in _tensors(batch):
        if tensor.dim():
            return tensor.shape[0]
    raise ConfigurationError(
        f"strategy 'ipu': a batch without a tensor that has items: {type(batch).__name__}. Valid: tensors, nested in "
        "any way, with the items along the first dimension."
    )


def joined(batches: list[Any]) -> Any:
    """Batches of one structure as one, their tensors joined along the first dimension."""
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
