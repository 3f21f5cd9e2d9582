"""Nested structures of tensors: batches, and the inputs and outputs of modules."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

__all__ = ["hook_gradients", "leaves", "map_tensors", "parts_of", "with_parts"]

Others = Callable[[Any], Any] | None


def map_tensors(fn: Callable[[Tensor], Any], data: Any, others: Others = None) -> Any:
    """Apply ``fn`` to every tensor in ``data``.

    It recurses into mappings, lists, tuples, named tuples and dataclass instances, and keeps their types. Nothing is
    changed in place.

    Args:
        fn: What to call with each tensor.
        data: A nested structure.
        others: What to call with every other object in it; without, they are returned unchanged.

    Returns:
        The structure with the results of ``fn``. Parts whose tensors ``fn`` returned unchanged are the same objects as
        in ``data``.
    """
    kind = type(data)
    if kind is list or kind is tuple:
        items = [fn(item) if type(item) is Tensor else map_tensors(fn, item, others) for item in data]
        for old, new in zip(data, items, strict=True):
            if old is not new:
                return items if kind is list else tuple(items)
        return data
    if kind is dict:
        changed = _changed_items(fn, data, others)
        return {**data, **changed} if changed else data
    if isinstance(data, Tensor):
        return fn(data)
    if isinstance(data, Mapping):
        return _map_mapping(fn, data, others)
    if isinstance(data, list):
        return _map_list(fn, data, others)
    if isinstance(data, PackedSequence):
        return _map_packed(fn, data)
    if isinstance(data, tuple):
        return _map_tuple(fn, data, others)
    if dataclasses.is_dataclass(data) and not isinstance(data, type):
        return _map_dataclass(fn, data, others)
    return data if others is None else others(data)


def hook_gradients(outputs: Any, hook: Callable[[Tensor], None]) -> None:
    """Call ``hook`` in each backward pass that reaches a tensor of a module's outputs.

    Outputs are left alone while a module is compiled, and where gradients are disabled.

    Args:
        outputs: A nested structure.
        hook: What to call with the gradient of the tensor.
    """

    def register(output: Tensor) -> Tensor:
        if output.requires_grad:
            output.register_hook(hook)  # type: ignore[no-untyped-call]
        return output

    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        map_tensors(register, outputs)


def _changed_items(fn: Callable[[Tensor], Any], data: Mapping[Any, Any], others: Others) -> dict[Any, Any]:
    changed = {}
    for key, item in data.items():
        new = fn(item) if type(item) is Tensor else map_tensors(fn, item, others)
        if new is not item:
            changed[key] = new
    return changed


def _map_mapping(fn: Callable[[Tensor], Any], data: Mapping[Any, Any], others: Others) -> Any:
    changed = _changed_items(fn, data, others)
    return with_parts(data, changed) if changed else data


def _map_list(fn: Callable[[Tensor], Any], data: list[Any], others: Others) -> list[Any]:
    plain = list(data)
    items = map_tensors(fn, plain, others)
    result: list[Any] = data if items is plain else with_parts(data, dict(enumerate(items)))
    return result


def _map_packed(fn: Callable[[Tensor], Any], data: PackedSequence) -> PackedSequence:
    # Its batch sizes must stay unchanged on the CPU.
    plain = (data.data, data.sorted_indices, data.unsorted_indices)
    items = map_tensors(fn, plain)
    return data if items is plain else PackedSequence(items[0], data.batch_sizes, *items[1:])


def _map_tuple(fn: Callable[[Tensor], Any], data: tuple[Any, ...], others: Others) -> Any:
    plain = tuple(data)
    items = map_tensors(fn, plain, others)
    return data if items is plain else with_parts(data, dict(enumerate(items)))


def _map_dataclass(fn: Callable[[Tensor], Any], data: Any, others: Others) -> Any:
    changed = _changed_items(fn, parts_of(data), others)
    return with_parts(data, changed) if changed else data


def parts_of(data: Any) -> dict[Any, Any]:
    """What a container holds, by key, position or field; nothing for any other object, or a ``PackedSequence``."""
    if isinstance(data, PackedSequence):
        return {}
    if isinstance(data, Mapping):
        return dict(data)
    if isinstance(data, list | tuple):
        return dict(enumerate(data))
    if dataclasses.is_dataclass(data) and not isinstance(data, type):
        return {
            field.name: getattr(data, field.name) for field in dataclasses.fields(data) if hasattr(data, field.name)
        }
    return {}


def with_parts(data: Any, parts: Mapping[Any, Any]) -> Any:
    """A copy of a container in which ``parts`` take the place of those with their keys.

    It keeps what the class holds in addition to its parts, such as a default factory.
    """
    constructor: Any = type(data)
    if isinstance(data, tuple):
        items = [parts.get(position, item) for position, item in enumerate(data)]
        return constructor(*items) if hasattr(data, "_fields") else constructor(items)
    is_mapping = isinstance(data, Mapping)
    if is_mapping and not isinstance(data, MutableMapping):
        return constructor({**data, **parts})
    result = copy.copy(data)
    for key, item in parts.items():
        if is_mapping or isinstance(data, list):
            result[key] = item
        else:
            # Bypass __setattr__, which raises in a frozen class.
            object.__setattr__(result, key, item)
    return result


def leaves(data: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Everything in ``data`` into which :func:`map_tensors` does not recurse, each with its place.

    Args:
        data: A nested structure. A ``PackedSequence`` and an empty container count as one object.
        place: How ``data`` itself is called; the places in it are ``data['key'][0].field``.
    """
    parts: list[tuple[str, Any]] = []
    if isinstance(data, Tensor | PackedSequence):
        pass
    elif isinstance(data, Mapping):
        parts = [(f"[{key!r}]", item) for key, item in data.items()]
    elif isinstance(data, tuple) and (names := getattr(data, "_fields", None)) is not None:
        parts = [(f".{name}", item) for name, item in zip(names, data, strict=True)]
    elif isinstance(data, list | tuple):
        parts = [(f"[{number}]", item) for number, item in enumerate(data)]
    elif dataclasses.is_dataclass(data) and not isinstance(data, type):
        names = [field.name for field in dataclasses.fields(data) if hasattr(data, field.name)]
        parts = [(f".{name}", getattr(data, name)) for name in names]
    if not parts:
        yield place, data
    for step, item in parts:
        yield from leaves(item, place + step)
