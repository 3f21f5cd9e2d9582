"""Walking nested structures of tensors: batches, and what a module takes and returns."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

__all__ = ["map_tensors"]


def map_tensors(fn: Callable[[Tensor], Any], data: Any) -> Any:
    """Apply ``fn`` to every tensor in ``data``.

    Looks into mappings, lists, tuples, named tuples and dataclass instances, and keeps their types; any other object is
    left alone. Nothing is changed in place.

    Returns:
        The structure with what ``fn`` returned; ``data`` itself, and every part of it, where ``fn`` returned the very
        same tensors.
    """
    kind = type(data)
    if kind is list or kind is tuple:
        items = [fn(item) if type(item) is Tensor else map_tensors(fn, item) for item in data]
        for old, new in zip(data, items, strict=True):
            if old is not new:
                return items if kind is list else tuple(items)
        return data
    if kind is dict:
        changed = _changed_items(fn, data)
        return {**data, **changed} if changed else data
    if isinstance(data, Tensor):
        return fn(data)
    if isinstance(data, Mapping):
        return _map_mapping(fn, data)
    if isinstance(data, list):
        return _map_list(fn, data)
    if isinstance(data, PackedSequence):
        return _map_packed(fn, data)
    if isinstance(data, tuple):
        return _map_tuple(fn, data)
    if dataclasses.is_dataclass(data) and not isinstance(data, type):
        return _map_dataclass(fn, data)
    return data


def _changed_items(fn: Callable[[Tensor], Any], data: Mapping[Any, Any]) -> dict[Any, Any]:
    changed = {}
    for key, item in data.items():
        new = fn(item) if type(item) is Tensor else map_tensors(fn, item)
        if new is not item:
            changed[key] = new
    return changed


def _map_mapping(fn: Callable[[Tensor], Any], data: Mapping[Any, Any]) -> Any:
    changed = _changed_items(fn, data)
    if not changed:
        return data
    if not isinstance(data, MutableMapping):
        constructor: Any = type(data)
        return constructor({**data, **changed})
    # A copy keeps what the class holds beside its items, such as a default factory.
    result = copy.copy(data)
    for key, item in changed.items():
        result[key] = item
    return result


def _map_list(fn: Callable[[Tensor], Any], data: list[Any]) -> list[Any]:
    plain = list(data)
    items = map_tensors(fn, plain)
    if items is plain:
        return data
    result = copy.copy(data)
    result[:] = items
    return result


def _map_packed(fn: Callable[[Tensor], Any], data: PackedSequence) -> PackedSequence:
    # Its batch sizes must stay as they are, on the CPU.
    plain = (data.data, data.sorted_indices, data.unsorted_indices)
    items = map_tensors(fn, plain)
    return data if items is plain else PackedSequence(items[0], data.batch_sizes, *items[1:])


def _map_tuple(fn: Callable[[Tensor], Any], data: tuple[Any, ...]) -> Any:
    plain = tuple(data)
    items = map_tensors(fn, plain)
    if items is plain:
        return data
    constructor: Any = type(data)
    return constructor(*items) if hasattr(data, "_fields") else constructor(items)


def _map_dataclass(fn: Callable[[Tensor], Any], data: Any) -> Any:
    changed = _changed_items(
        fn, {field.name: getattr(data, field.name) for field in dataclasses.fields(data) if hasattr(data, field.name)}
    )
    if not changed:
        return data
    result = copy.copy(data)
    for name, item in changed.items():
        # Past __setattr__, which a frozen class forbids.
        object.__setattr__(result, name, item)
    return result
