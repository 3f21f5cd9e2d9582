"""Dividing a collection among processes."""

from __future__ import annotations

import copy
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

from torch import Tensor

from ...errors import ConfigurationError, WrongTypeError

__all__ = ["split"]


def split(inputs: Any, shards: int, shard: int, apply_padding: bool) -> Any:
    """Part ``shard`` of ``inputs``, which is cut into ``shards`` contiguous parts.

    Without padding, the first parts have one item more where the length is not divisible. With padding, each has
    ``ceil(length / shards)`` items, and the last item fills the last parts.

    Raises:
        WrongTypeError: ``inputs`` cannot be divided.
        ConfigurationError: The values of a mapping have different lengths.
    """
    length = _length(inputs)
    if apply_padding:
        size = -(-length // shards)
        chosen = [min(number, length - 1) for number in range(shard * size, (shard + 1) * size)]
    else:
        size, extra = divmod(length, shards)
        start = shard * size + min(shard, extra)
        chosen = list(range(start, start + size + (shard < extra)))
    return _take(inputs, chosen)


def _length(inputs: Any, place: str = "inputs") -> int:
    if isinstance(inputs, Mapping):
        lengths = {key: _length(value, f"{place}[{key!r}]") for key, value in inputs.items()}
        if len(set(lengths.values())) > 1:
            raise ConfigurationError(
                f"split_between_processes: the values of {place} have different lengths: {lengths}. Pass values of one "
                "length, one item for each sample."
            )
        return next(iter(lengths.values()), 0)
    is_scalar = isinstance(inputs, Tensor) and not inputs.dim()
    can_take = isinstance(inputs, Sequence | Tensor) or hasattr(inputs, "__array__") or hasattr(inputs, "select")
    if is_scalar or not can_take or isinstance(inputs, str | bytes) or not hasattr(inputs, "__len__"):
        what = "a scalar tensor" if is_scalar else f"an object of type {type(inputs).__name__}"
        raise WrongTypeError(
            f"split_between_processes: {place} is {what}, which cannot be divided. Pass a list, a tuple, a tensor, a "
            "data set of Hugging Face, or a dict of them."
        )
    return len(inputs)


def _take(inputs: Any, chosen: list[int]) -> Any:
    if isinstance(inputs, Mapping):
        taken = {key: _take(value, chosen) for key, value in inputs.items()}
        if not isinstance(inputs, MutableMapping):
            constructor: Any = type(inputs)
            return constructor(taken)
        result = copy.copy(inputs)  # keeps what the class holds in addition to its items
        for key, value in taken.items():
            result[key] = value
        return result
    if isinstance(inputs, list | tuple):
        items = [inputs[number] for number in chosen]
        return items if isinstance(inputs, list) else tuple(items)
    if isinstance(inputs, Tensor) or hasattr(inputs, "__array__"):
        return inputs[chosen]
    if hasattr(inputs, "select"):  # a data set, whose own indexing reads the items
        return inputs.select(chosen)
    return [inputs[number] for number in chosen]
