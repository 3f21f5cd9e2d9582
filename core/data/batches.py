"""Batches as nested structures: their size, parts of them, several joined."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import ConfigurationError
from ..utilities.nested import map_tensors
from .shards import Real


def batch_size_of(batch: Any) -> int | None:
    """The size of the first dimension of the first tensor in ``batch``; ``None`` where no tensor has one."""
    return next(first_dimensions(batch), None)


def first_dimensions(data: Any) -> Iterator[int]:
    """The size of the first dimension of each tensor in ``data`` that has one."""
    if isinstance(data, Tensor):
        if data.dim():
            yield data.shape[0]
        return
    for part in data if isinstance(data, list | tuple) else _parts(data):
        yield from first_dimensions(part)


def slice_batch(batch: Any, start: int, stop: int) -> Any:
    """Items ``start`` to ``stop`` of ``batch``: of each tensor, and of each list of as many other things."""
    size = batch_size_of(batch)
    return _slice(batch, size, slice(start, stop))


def _slice(data: Any, size: int | None, chosen: slice) -> Any:
    if isinstance(data, Tensor):
        return data[chosen] if data.dim() and data.shape[0] == size else data
    if isinstance(data, list | tuple) and len(data) == size and batch_size_of(data) is None:
        return data[chosen]
    return _rebuild(data, [_slice(part, size, chosen) for part in _parts(data)])


def concatenate(batches: Sequence[Any]) -> Any:
    """Batches of one structure, joined along the first dimension.

    Raises:
        ConfigurationError: Their tensors cannot be joined.
    """
    if len(batches) == 1:
        return batches[0]
    try:
        return _concatenate(batches, [batch_size_of(batch) for batch in batches])
    except (RuntimeError, ValueError) as error:
        raise ConfigurationError(
            f"dispatch_batches: batches of an incomplete global batch cannot be joined: {error}. Use "
            "dispatch_batches=False, drop_last=True, or a collate_fn that pads to one size."
        ) from error


def _concatenate(batches: Sequence[Any], sizes: Sequence[int | None]) -> Any:
    first = batches[0]
    if isinstance(first, Tensor):
        return torch.cat(list(batches)) if first.dim() else first
    if (
        isinstance(first, list | tuple)
        and batch_size_of(first) is None
        and all(len(batch) == size for batch, size in zip(batches, sizes, strict=True))
    ):
        joined = [item for batch in batches for item in batch]
        return joined if isinstance(first, list) else tuple(joined)
    parts = zip(*(_parts(batch) for batch in batches), strict=True)
    return _rebuild(first, [_concatenate(part, sizes) for part in parts])


def _parts(data: Any) -> list[Any]:
    if isinstance(data, Mapping):
        return list(data.values())
    if dataclasses.is_dataclass(data) and not isinstance(data, type):
        return [getattr(data, field.name, None) for field in dataclasses.fields(data)]
    return list(data) if isinstance(data, list | tuple) else []


def _rebuild(data: Any, parts: list[Any]) -> Any:
    """A structure like ``data`` with other parts."""
    if isinstance(data, Mapping):
        pairs = dict(zip(data, parts, strict=True))
        constructor: Any = type(data)
        return pairs if constructor is dict else constructor(pairs)
    if dataclasses.is_dataclass(data) and not isinstance(data, type):
        names = [field.name for field in dataclasses.fields(data)]
        return dataclasses.replace(data, **dict(zip(names, parts, strict=True)))
    if isinstance(data, tuple):
        constructor = type(data)
        return constructor(*parts) if hasattr(data, "_fields") else constructor(parts)
    return parts if isinstance(data, list) else data


def drop_padding(gathered: Any, real: Real | None) -> Any:
    """The items gathered from all processes, without padding.

    Args:
        gathered: Tensors, joined along the first dimension by rank, of which each process gave an equal part.
        real: As :attr:`core.data.PreparedLoader.real_samples`.
    """
    if real is None:
        return gathered

    def drop(tensor: Tensor) -> Tensor:
        parts = tensor.tensor_split(len(real))
        return torch.cat([part if count is None else part[:count] for part, count in zip(parts, real, strict=True)])

    return map_tensors(drop, gathered)
