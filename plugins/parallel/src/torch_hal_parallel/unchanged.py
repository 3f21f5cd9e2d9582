"""A context that restores a module after a step is repeated: its counters, tensors and containers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["unchanged"]

CONTAINERS = (dict, list, set, deque)


@contextmanager
def unchanged(module: nn.Module | None) -> Iterator[None]:
    """A context after which attributes of ``module`` and its submodules are as before: numbers, tensors, containers.

    Metrics are such submodules. Other objects in attributes are not looked into.
    """
    before: dict[int, tuple[Any, Any]] = {}
    for part in () if module is None else module.modules():
        _note(vars(part), before)
    try:
        yield
    finally:
        for found, copied in before.values():
            _restore(found, copied)


def _note(found: Any, before: dict[int, tuple[Any, Any]]) -> None:
    if id(found) in before:
        return
    if type(found) is Tensor and not found.is_meta and not found.requires_grad:
        before[id(found)] = (found, found.clone())
    elif isinstance(found, CONTAINERS):
        before[id(found)] = (found, dict(found) if isinstance(found, dict) else list(found))
        for one in _values(found):
            _note(one, before)


def _values(container: Any) -> Iterable[Any]:
    return container.values() if isinstance(container, dict) else container


def _restore(found: Any, copied: Any) -> None:
    if isinstance(found, Tensor):
        if not torch.equal(found, copied):
            found.copy_(copied)
        return
    names = (list(found), list(copied)) if isinstance(found, dict) else ([], [])
    if names[0] == names[1] and [id(one) for one in _values(found)] == [id(one) for one in _values(copied)]:
        return
    found.clear()
    if isinstance(found, list | deque):
        found.extend(copied)
    else:
        found.update(copied)
