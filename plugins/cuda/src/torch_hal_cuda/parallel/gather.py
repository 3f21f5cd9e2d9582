"""Joining what the parts of a batch gave."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor

from core.errors import ConfigurationError

__all__ = ["gather"]


def gather(outputs: Sequence[Any], device: torch.device) -> Any:
    """One structure of the outputs of all parts, which must be of one form.

    Tensors are joined along their first dimension on ``device``; scalars, and numbers, become a vector with an item for
    each part. ``None`` stays ``None``. Any other object than a mapping, list, tuple or dataclass becomes the list of
    all parts'. Gradients flow back to the parts.

    Raises:
        ConfigurationError: The outputs differ in form, or their tensors cannot be joined.
    """
    first = outputs[0]
    if isinstance(first, Tensor):
        return _joined(outputs, device)
    if any(type(output) is not type(first) for output in outputs):
        raise _differ(outputs)
    if first is None:
        return None
    if isinstance(first, bool | int | float):
        return torch.tensor(list(outputs), device=device)
    items = _items(first)
    if items is None:
        return list(outputs)
    by_part = [items, *(_items(output) for output in outputs[1:])]
    if any(other is None or other.keys() != items.keys() for other in by_part):
        raise _differ(outputs)
    gathered = {key: gather([part[key] for part in by_part if part is not None], device) for key in items}
    return _rebuilt(first, gathered)


def _joined(outputs: Sequence[Any], device: torch.device) -> Tensor:
    if not all(isinstance(output, Tensor) for output in outputs):
        raise _differ(outputs)
    if len({(tensor.shape[1:], tensor.dim() > 0, tensor.dtype) for tensor in outputs}) > 1:
        raise _differ([f"{tuple(tensor.shape)}, {tensor.dtype}" for tensor in outputs])
    return torch.cat([(tensor if tensor.dim() else tensor.reshape(1)).to(device) for tensor in outputs])


def _items(output: Any) -> dict[Any, Any] | None:
    """What ``output`` holds, by key; ``None`` where it is nothing that holds others."""
    if isinstance(output, Mapping):
        return dict(output)
    if isinstance(output, list | tuple):
        return dict(enumerate(output))
    if dataclasses.is_dataclass(output):
        return {field.name: getattr(output, field.name) for field in dataclasses.fields(output)}
    return None


def _rebuilt(like: Any, items: dict[Any, Any]) -> Any:
    """An object such as ``like`` that holds ``items`` instead."""
    constructor: Any = type(like)
    if isinstance(like, tuple):
        return constructor(*items.values()) if hasattr(like, "_fields") else constructor(items.values())
    if isinstance(like, list):
        return list(items.values())
    if isinstance(like, Mapping) and not isinstance(like, MutableMapping):
        return constructor(items)
    # A copy keeps what the class holds beside its items.
    result = copy.copy(like)
    for key, item in items.items():
        if isinstance(result, MutableMapping):
            result[key] = item
        else:
            object.__setattr__(result, key, item)  # past what a frozen dataclass forbids
    return result


def _differ(forms: Sequence[Any]) -> ConfigurationError:
    return ConfigurationError(
        f"outputs: the parts of a batch gave outputs of different forms, which cannot be joined: {_said(forms)}. "
        "Valid: the same keys, types and dtypes from each part, and tensors that differ in their first dimension alone."
    )


def _said(forms: Sequence[Any]) -> str:
    return "; ".join(f"part {part}: {_shortened(form)}" for part, form in enumerate(forms))


def _shortened(form: Any) -> str:
    text = form if isinstance(form, str) else type(form).__name__
    keys = ", ".join(map(repr, form)) if isinstance(form, Mapping) else ""
    return f"{text} with {keys}" if keys else text
