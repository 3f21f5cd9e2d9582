"""Refuse, before writing, values that ``torch.load(weights_only=True)`` could not read back."""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import CheckpointError

__all__ = ["refuse_unreadable"]

_PLAIN = frozenset(
    {type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.layout, torch.Size}
)
_SMALL = 1 << 63


def refuse_unreadable(checkpoint: Any) -> None:
    """Check that every object in ``checkpoint`` could be read back.

    Containers, numbers, strings and ordinary tensors are recognized by their exact type. Any other object is pickled
    and loaded by itself, so that torch decides, with the classes that :func:`torch.serialization.add_safe_globals`
    allows.

    Raises:
        CheckpointError: An object could not be read back; the message names its place.
    """
    seen: set[int] = set()
    pending = [("checkpoint", checkpoint)]
    while pending:
        place, value = pending.pop()
        if type(value) in _PLAIN and not _is_rare(value):
            continue
        if id(value) in seen:
            continue
        seen.add(id(value))
        parts = _parts(place, value)
        if parts is None:
            _read_back(place, value)
        else:
            # The last is taken first: so the error names the first place.
            pending.extend(reversed(list(parts)))


def _is_rare(value: Any) -> bool:
    # torch's unpickler does not support empty bytes, nor integers of more than 255 bytes.
    return value == b"" if type(value) is bytes else type(value) is int and not -_SMALL <= value < _SMALL


def _parts(place: str, value: Any) -> Iterator[tuple[str, Any]] | None:
    """The parts of ``value``; ``None`` if its type alone does not tell whether it can be read back."""
    kind = type(value)
    if kind is dict:
        return _items(place, value)
    if kind is OrderedDict:
        return _chain(_items(place, value), _attributes(place, value))
    if kind in (list, tuple, set):
        return ((f"{place}[{index}]", item) for index, item in enumerate(value))
    if kind in (Tensor, nn.Parameter) and value.layout is torch.strided and not (value.is_quantized or value.is_nested):
        return _attributes(place, value)
    return None


def _chain(*parts: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    for part in parts:
        yield from part


def _items(place: str, mapping: dict[Any, Any]) -> Iterator[tuple[str, Any]]:
    for key, item in mapping.items():
        if type(key) is not str:
            yield f"key {key!r} of {place}", key
        yield f"{place}[{key!r}]", item


def _attributes(place: str, value: Any) -> Iterator[tuple[str, Any]]:
    return ((f"{place}.{name}", item) for name, item in vars(value).items())


def _read_back(place: str, value: Any) -> None:
    buffer = io.BytesIO()
    try:
        torch.save(value, buffer)
        buffer.seek(0)
        torch.load(buffer, map_location="cpu", weights_only=True)
    except Exception as error:
        kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
        raise CheckpointError(
            f"{place} is of type {kind}, which torch.load(weights_only=True) could not read back: {_reason(error)} "
            f"Save tensors, numbers, strings, bytes (not empty), None, lists, tuples, dicts, sets, torch.Size, "
            f"torch.dtype or torch.device, or allow the class with torch.serialization.add_safe_globals([...])."
        ) from error


def _reason(error: Exception) -> str:
    """The sentence in torch's long message that says what is wrong."""
    text = str(error).rpartition("WeightsUnpickler error:")[2].strip()
    return text.partition("\n")[0].partition(" Please use ")[0].rstrip(".") + "."
