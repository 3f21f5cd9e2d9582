"""Splits a nested structure of tensors into one part per device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from torch_hal.errors import ConfigurationError, WrongTypeError, quoted
from torch_hal.utilities.nested import map_tensors

__all__ = ["scatter"]


def scatter(data: Any, devices: Sequence[torch.device]) -> tuple[list[Any], list[int]]:
    """Split every tensor in ``data`` along its first dimension, each part on its device.

    Sizes differ by at most one, the larger ones first; with fewer items than devices, only that many devices get a
    part, of one item each. Scalar tensors and other objects go to each device unchanged. Gradients flow through the
    parts.

    Returns:
        The parts by device, and the number of items of each; one part of one item if nothing can be split.

    Raises:
        ConfigurationError: Tensors differ in their first dimension, or it is empty.
        WrongTypeError: ``data`` contains a packed sequence, which has no batch dimension.
    """
    sizes = _part_sizes(_items(data), len(devices))
    parts, begin = [], 0
    for device, size in zip(devices, sizes, strict=False):
        parts.append(map_tensors(_Part(begin, size, device), data))
        begin += size
    return parts, sizes


class _Part:
    """A device's part of a tensor."""

    def __init__(self, begin: int, size: int, device: torch.device) -> None:
        self.begin, self.size, self.device = begin, size, device

    def __call__(self, tensor: Tensor) -> Tensor:
        own = tensor.narrow(0, self.begin, self.size) if tensor.dim() else tensor
        return own.to(self.device, non_blocking=True)


def _items(data: Any) -> int:
    """The number of items to split; 1 if there is no tensor to split."""
    found: set[int] = set()

    def note(tensor: Tensor) -> Tensor:
        if tensor.dim():
            found.add(tensor.shape[0])
        return tensor

    _refuse_packed(data)
    map_tensors(note, data)
    if len(found) > 1 or 0 in found:
        raise ConfigurationError(
            f"batch: the first dimensions of its tensors are {quoted(map(str, sorted(found)))}, so it cannot be split "
            "over devices. Use tensors with the same first dimension >= 1; pass values that belong to no item as a "
            "scalar tensor or a number."
        )
    return found.pop() if found else 1


def _refuse_packed(data: Any) -> None:
    if isinstance(data, PackedSequence):
        raise WrongTypeError(
            "batch: a PackedSequence cannot be split over devices. Use padded tensors and their lengths, and pack them "
            "in the module."
        )
    if isinstance(data, dict):
        data = data.values()
    elif not isinstance(data, list | tuple):
        return
    for item in data:
        _refuse_packed(item)


def _part_sizes(items: int, devices: int) -> list[int]:
    parts = min(items, devices)
    each, more = divmod(items, parts)
    return [each + (number < more) for number in range(parts)]
