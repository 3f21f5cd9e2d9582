"""The objects that a Runtime has prepared, in order, for its checkpoints."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal
from weakref import ref

from torch import nn
from torch.optim import Optimizer

from core.data import PreparedLoader

__all__ = ["PreparedObjects"]

Kind = Literal["models", "optimizers", "schedulers", "loaders"]


class PreparedObjects:
    """What was prepared, by kind and in order, as long as something else refers to it."""

    def __init__(self) -> None:
        self.clear()

    def add(self, objects: Iterable[Any]) -> None:
        """Note prepared objects; those that are known keep their place, and those without a state are left out."""
        for obj in objects:
            kind = _kind_of(obj)
            if kind is not None and all(obj is not known for known in self.of(kind)):
                self._known[kind] = [known for known in self._known[kind] if known() is not None] + [ref(obj)]

    def of(self, kind: Kind) -> list[Any]:
        """The objects of one kind, in the order in which they were prepared."""
        return [obj for known in self._known[kind] if (obj := known()) is not None]

    def clear(self) -> None:
        """Forget all of them."""
        self._known: dict[Kind, list[ref[Any]]] = {"models": [], "optimizers": [], "schedulers": [], "loaders": []}

    def __getstate__(self) -> dict[str, Any]:
        return {}  # another process prepares its own

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.clear()


def _kind_of(obj: Any) -> Kind | None:
    if isinstance(obj, nn.Module):
        return "models"
    if isinstance(obj, Optimizer):
        return "optimizers"
    if isinstance(obj, PreparedLoader):
        return "loaders"
    return "schedulers" if hasattr(obj, "step") and hasattr(obj, "state_dict") else None
