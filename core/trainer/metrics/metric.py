"""One name's values in the running epoch."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from ...strategies.training_step import LOG_REDUCTIONS

__all__ = ["Metric", "Value"]

Value = Tensor | float

SAVED = ("on_step", "on_epoch", "prog_bar", "to_logger", "reduce_fx", "sync_dist", "last", "total", "weight")
"""The attributes that a checkpoint holds."""


class Pending(NamedTuple):
    """A value of this process's newest step, until the processes exchange theirs."""

    reduce_fx: str
    batch: int
    """The number of batches that were trained on before it was logged."""
    value: Value


class Metric:
    """The values of one name; and how they are combined, and where they go."""

    __slots__ = (*SAVED, "given", "pending", "place")

    def __init__(
        self,
        on_step: bool,
        on_epoch: bool,
        prog_bar: bool,
        to_logger: bool,
        reduce_fx: str,
        sync_dist: bool,
        given: tuple[Any, ...] | None,
    ) -> None:
        self.on_step, self.on_epoch, self.prog_bar, self.to_logger = on_step, on_epoch, prog_bar, to_logger
        self.reduce_fx, self.sync_dist = reduce_fx, sync_dist
        self.given = given
        """The options of the first call; ``None`` if not known."""
        self.place: Any = None
        """Where it is logged: the number of the loader, or a part of the epoch without batches."""
        self.last: Value | None = None
        """The value of this epoch's last step that logged it; where processes exchange values, of the last exchange."""
        self.pending: Pending | None = None
        """The value of this process that it has not exchanged yet."""
        self.total: Value | None = None
        self.weight: float = 0

    def add(self, value: Value, size: int) -> None:
        """Take a value of weight ``size`` into the epoch's."""
        if isinstance(value, Tensor):
            value = _wide(value)
        if self.reduce_fx == "mean":
            value = value * size
            self.weight += size
        self.total = value if self.total is None else LOG_REDUCTIONS[self.reduce_fx](self.total, value)

    def reset(self) -> None:
        """Forget the epoch's values."""
        self.last = self.total = self.pending = None
        self.weight = 0

    def name(self, name: str, suffix: str) -> str:
        """The name that a value is published under: with the suffix if there are values of both kinds."""
        plain, of_loader, number = name.partition("/dataloader_idx_")
        return plain + suffix + of_loader + number if self.on_step and self.on_epoch else name

    def published_names(self, name: str) -> set[str]:
        """The names under which the values are published."""
        suffixes = [suffix for suffix, is_wanted in (("_step", self.on_step), ("_epoch", self.on_epoch)) if is_wanted]
        return {name, *(self.name(name, suffix) for suffix in suffixes)}

    def state_dict(self) -> dict[str, Any]:
        """The values, and how they are combined."""
        pending = None if self.pending is None else list(self.pending)
        return {**{name: getattr(self, name) for name in SAVED}, "pending": pending, "place": self.place}

    @classmethod
    def from_state(cls, state: dict[str, Any], device: torch.device, owner: Any) -> Self:
        """Restore a :meth:`state_dict`, with tensors on ``device``; ``owner`` is the module that logged the metric."""
        metric = cls.__new__(cls)
        metric.given = None
        for name in SAVED:
            value = state[name]
            setattr(metric, name, value.to(device) if isinstance(value, Tensor) else value)
        pending = state.get("pending")
        metric.pending, metric.place = None if pending is None else Pending(*pending), state.get("place")
        return metric


def _wide(value: Tensor) -> Tensor:
    """``value`` in a dtype in which many such values can be added up."""
    if value.dtype in _WIDE:
        return value
    return value.float() if value.is_floating_point() else value.long()


_WIDE = frozenset({torch.float32, torch.float64, torch.int64})
