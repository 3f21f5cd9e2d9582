"""Splitting a nested structure of tensors into a part for each device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from core.errors import ConfigurationError, WrongTypeError, quoted
from core.nested import map_tensors

__all__ = ["scatter"]


def scatter(data: Any, devices: Sequence[torch.device]) -> tuple[list[Any], list[int]]:
    """Split every tensor in ``data`` along its first dimension, each part on its device.

    Sizes differ by one at most, the larger ones first; where there are fewer items than devices, only so many devices
    get a part, of one item each. Tensors without a dimension, and whatever is no tensor, go to each device as they are.
    Gradients flow back through the parts.

    Returns:
        The parts by device, and how many items each has; one part of one item where nothing can be split.

    Raises:
        ConfigurationError: Tensors differ in their first dimension, or it is empty.
        WrongTypeError: There is a packed sequence, whose items do not lie along a dimension.
    """
    sizes = _part_sizes(_items(data), len(devices))
    parts, begin = [], 0
    for device, size in zip(devices, sizes, strict=False):
        parts.append(map_tensors(_Part(begin, size, device), data))
        begin += size
    return parts, sizes


class _Part:
    """What one device gets of a tensor."""

    def __init__(self, begin: int, size: int, device: torch.device) -> None:
        self.begin, self.size, self.device = begin, size, device

    def __call__(self, tensor: Tensor) -> Tensor:
        own = tensor.narrow(0, self.begin, self.size) if tensor.dim() else tensor
        return own.to(self.device, non_blocking=True)


def _items(data: Any) -> int:
    """How many items there are to split; 1 where there is no tensor to split."""
    found: set[int] = set()

    def note(tensor: Tensor) -> Tensor:
        if tensor.dim():
            found.add(tensor.shape[0])
        return tensor

    _refuse_packed(data)
    map_tensors(note, data)
    if len(found) > 1 or 0 in found:
        raise ConfigurationError(
            f"batch: its tensors have first dimensions of {quoted(map(str, sorted(found)))} items, and cannot be split "
            "over devices together. Valid: tensors of one first dimension, of one item or more; what belongs to no "
            "item as a tensor without a dimension or as a number."
        )
    return found.pop() if found else 1


def _refuse_packed(data: Any) -> None:
    if isinstance(data, PackedSequence):
        raise WrongTypeError(
            "batch: a PackedSequence cannot be split over devices. Valid: padded tensors and their lengths, packed "
            "within the module."
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
