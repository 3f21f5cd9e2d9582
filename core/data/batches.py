"""Batches as nested structures: their size, parts of them, several joined."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from textwrap import shorten
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_sequence, unpack_sequence

from ..errors import ConfigurationError
from ..utilities.nested import map_tensors, parts_of, with_parts
from .shards import Real


def batch_size_of(batch: Any) -> int | None:
    """The size of the first dimension of the first tensor in ``batch``; ``None`` where no tensor has one."""
    return next(first_dimensions(batch), None)


def common_size_of(batch: Any) -> int | None:
    """The size of the first dimension of every tensor in ``batch``; ``None`` where they differ, or none has one."""
    sizes = set(first_dimensions(batch))
    return sizes.pop() if len(sizes) == 1 else None


def first_dimensions(data: Any) -> Iterator[int]:
    """The size of the first dimension of each tensor in ``data`` that has one; of packed sequences, their number."""
    if isinstance(data, Tensor):
        if data.dim():
            yield data.size(0)  # a nested tensor has no shape
    elif isinstance(data, PackedSequence):
        yield int(data.batch_sizes[0])
    else:
        for part in data if isinstance(data, list | tuple) else parts_of(data).values():
            yield from first_dimensions(part)


def slice_batch(batch: Any, start: int, stop: int) -> Any:
    """Items ``start`` to ``stop`` of ``batch``: of each tensor, and of each list of as many other things.

    Raises:
        ConfigurationError: Its tensors cannot be divided.
    """
    with _dividing():
        return _slice(batch, batch_size_of(batch), slice(start, stop))


@contextmanager
def _dividing() -> Iterator[None]:
    try:
        yield
    except (RuntimeError, ValueError) as error:
        raise ConfigurationError(
            f"dispatch_batches: an incomplete or split global batch cannot be divided: {shorten(str(error), 200)}. Use "
            "dispatch_batches=False, drop_last=True, or a collate_fn that pads to one size."
        ) from error


def _slice(data: Any, size: int | None, chosen: slice) -> Any:
    if isinstance(data, Tensor) or _is_array(data):
        return data[chosen] if data.ndim and data.shape[0] == size else data
    if isinstance(data, PackedSequence):
        return pack_sequence(unpack_sequence(data)[chosen], enforce_sorted=False)
    if isinstance(data, list | tuple) and len(data) == size and batch_size_of(data) is None:
        return data[chosen]
    parts = parts_of(data)
    return with_parts(data, {key: _slice(part, size, chosen) for key, part in parts.items()}) if parts else data


def concatenate(batches: Sequence[Any]) -> Any:
    """Batches of one structure, joined along the first dimension.

    Raises:
        ConfigurationError: They cannot be joined.
    """
    if len(batches) == 1:
        return batches[0]
    with _dividing():
        return _concatenate(batches, [batch_size_of(batch) for batch in batches])


def _concatenate(batches: Sequence[Any], sizes: Sequence[int | None]) -> Any:
    first = batches[0]
    if isinstance(first, Tensor) and first.dim():
        return torch.cat(list(batches))
    if isinstance(first, PackedSequence):
        return pack_sequence([one for batch in batches for one in unpack_sequence(batch)], enforce_sorted=False)
    is_of_items = batch_size_of(first) is None and all(
        isinstance(batch, list | tuple) and len(batch) == size for batch, size in zip(batches, sizes, strict=True)
    )
    if is_of_items:
        joined = [item for batch in batches for item in batch]
        return joined if isinstance(first, list) else tuple(joined)
    if all(_is_array(batch) and batch.shape[:1] == (size,) for batch, size in zip(batches, sizes, strict=True)):
        return sys.modules["numpy"].concatenate(batches)
    all_parts = [parts_of(batch) for batch in batches]
    if any(parts.keys() != all_parts[0].keys() for parts in all_parts):
        raise ValueError(f"the batches of type {type(first).__name__} do not have the same parts")
    if all_parts[0]:
        return with_parts(
            first, {key: _concatenate([parts[key] for parts in all_parts], sizes) for key in all_parts[0]}
        )
    if any(not _is_same(first, other) for other in batches[1:]):
        raise ValueError(f"the value of type {type(first).__name__} of one batch is not that of another")
    return first


def _is_array(data: Any) -> bool:
    return "numpy" in sys.modules and isinstance(data, sys.modules["numpy"].ndarray)


def _is_same(one: Any, other: Any) -> bool:
    try:
        return one is other or bool(one == other)
    except (RuntimeError, ValueError):  # of several values
        return False


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
