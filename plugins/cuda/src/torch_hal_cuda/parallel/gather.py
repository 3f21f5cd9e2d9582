"""Gathers the outputs of a batch's parts."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torch_hal.errors import ConfigurationError

__all__ = ["gather", "moved"]


def gather(outputs: Sequence[Any], device: torch.device) -> Any:
    """Combine the outputs of all parts, which must have the same structure.

    Tensors are concatenated along their first dimension on ``device``; scalar tensors and numbers become a vector with
    one item per part. ``None`` stays ``None``. Objects other than mappings, lists, tuples and dataclasses become a list
    with one item per part. Gradients flow to the parts.

    Raises:
        ConfigurationError: The outputs differ in structure, or their tensors cannot be concatenated.
    """
    first = outputs[0]
    if isinstance(first, Tensor):
        return _concatenated(outputs, device)
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


def moved(output: Any, device: torch.device) -> Any:
    """``output`` with its tensors on ``device``. Gradients flow to where they were."""
    if isinstance(output, Tensor):
        return output.to(device)
    items = _items(output)
    return output if items is None else _rebuilt(output, {key: moved(item, device) for key, item in items.items()})


def _concatenated(outputs: Sequence[Any], device: torch.device) -> Tensor:
    if not all(isinstance(output, Tensor) for output in outputs):
        raise _differ(outputs)
    if len({(tensor.shape[1:], tensor.dim() > 0, tensor.dtype) for tensor in outputs}) > 1:
        raise _differ([f"{tuple(tensor.shape)}, {tensor.dtype}" for tensor in outputs])
    return torch.cat([(tensor if tensor.dim() else tensor.reshape(1)).to(device) for tensor in outputs])


def _items(output: Any) -> dict[Any, Any] | None:
    """The items of ``output`` by key; ``None`` if it is not a container."""
    if isinstance(output, Mapping):
        return dict(output)
    if isinstance(output, list | tuple):
        return dict(enumerate(output))
    if dataclasses.is_dataclass(output):
        return {field.name: getattr(output, field.name) for field in dataclasses.fields(output)}
    return None


def _rebuilt(like: Any, items: dict[Any, Any]) -> Any:
    """An object of the type of ``like`` with ``items``."""
    constructor: Any = type(like)
    if isinstance(like, tuple):
        return constructor(*items.values()) if hasattr(like, "_fields") else constructor(items.values())
    if isinstance(like, list):
        return list(items.values())
    if isinstance(like, Mapping) and not isinstance(like, MutableMapping):
        return constructor(items)
    # A copy keeps the attributes that are not items.
    result = copy.copy(like)
    for key, item in items.items():
        if isinstance(result, MutableMapping):
            result[key] = item
        else:
            object.__setattr__(result, key, item)  # also for a frozen dataclass
    return result


def _differ(forms: Sequence[Any]) -> ConfigurationError:
    return ConfigurationError(
        f"outputs: the outputs of the parts of a batch differ and cannot be gathered: {_listed(forms)}. Return the "
        "same keys, types and dtypes from each part, and tensors that differ only in their first dimension."
    )


def _listed(forms: Sequence[Any]) -> str:
    return "; ".join(f"part {part}: {_shortened(form)}" for part, form in enumerate(forms))


def _shortened(form: Any) -> str:
    text = form if isinstance(form, str) else type(form).__name__
    keys = ", ".join(map(repr, form)) if isinstance(form, Mapping) else ""
    return f"{text} with {keys}" if keys else text
