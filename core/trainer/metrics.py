"""What a Module logs: the last value of a step, the mean of an epoch.

Values stay tensors on their device until somebody reads them, so that logging waits for no device.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from core.errors import ConfigurationError, quoted
from core.strategies.base import Strategy

__all__ = ["MetricLog"]

REDUCTIONS = ("mean", "sum", "min", "max")


class _Metric:
    """One name's values in the running epoch."""

    __slots__ = ("last", "on_epoch", "on_step", "prog_bar", "reduce_fx", "sync_dist", "total", "weight")

    def __init__(self, on_step: bool, on_epoch: bool, prog_bar: bool, reduce_fx: str, sync_dist: bool) -> None:
        self.on_step, self.on_epoch, self.prog_bar = on_step, on_epoch, prog_bar
        self.reduce_fx, self.sync_dist = reduce_fx, sync_dist
        self.last: Any = None
        self.total: Any = None
        self.weight: float = 0

    def add(self, value: Any, size: int) -> None:
        if self.reduce_fx == "mean":
            share = value * size
            self.total = share if self.total is None else self.total + share
            self.weight += size
        elif self.total is None:
            self.total = value
        else:
            self.total = _COMBINE[self.reduce_fx](self.total, value)

    def reset(self) -> None:
        self.total, self.weight = None, 0


_COMBINE: dict[str, Any] = {
    "mean": lambda a, b: a + b,
    "sum": lambda a, b: a + b,
    "min": lambda a, b: torch.minimum(torch.as_tensor(a), torch.as_tensor(b)),
    "max": lambda a, b: torch.maximum(torch.as_tensor(a), torch.as_tensor(b)),
}


class MetricLog:
    """What was logged in one stage (training, validation, …) of one epoch.

    Args:
        strategy: Combines epoch values over processes.
        on_step: What ``on_step=None`` means.
        on_epoch: What ``on_epoch=None`` means.
    """

    def __init__(self, strategy: Strategy, *, on_step: bool, on_epoch: bool) -> None:
        self.batch_size = 1
        """Weight of values logged without one; the loop sets it where epoch values are kept."""
        self._strategy = strategy
        self._defaults = (on_step, on_epoch)
        self._metrics: dict[str, _Metric] = {}

    def log(
        self,
        name: str,
        value: Any,
        prog_bar: bool,
        on_step: bool | None,
        on_epoch: bool | None,
        reduce_fx: str,
        sync_dist: bool,
        batch_size: int | None,
    ) -> None:
        """Take one value; see :meth:`core.Module.log`."""
        metric = self._metrics.get(name)
        if metric is None:
            metric = self._metrics[name] = self._new(name, value, prog_bar, on_step, on_epoch, reduce_fx, sync_dist)
        if isinstance(value, Tensor):
            value = value.detach()
        if metric.sync_dist:
            value = self._strategy.reduce(torch.as_tensor(value), metric.reduce_fx)
        metric.last = value
        if metric.on_epoch:
            metric.add(value, self.batch_size if batch_size is None else batch_size)

    def _new(
        self,
        name: str,
        value: Any,
        prog_bar: bool,
        on_step: bool | None,
        on_epoch: bool | None,
        reduce_fx: str,
        sync_dist: bool,
    ) -> _Metric:
        if reduce_fx not in REDUCTIONS:
            raise ConfigurationError(f"reduce_fx={reduce_fx!r} for {name!r}: unknown. Valid: {quoted(REDUCTIONS)}.")
        if isinstance(value, Tensor) and value.numel() != 1:
            raise ConfigurationError(f"log({name!r}): given a tensor of shape {tuple(value.shape)}. Valid: a scalar.")
        step, epoch = self._defaults
        return _Metric(
            step if on_step is None else on_step, epoch if on_epoch is None else on_epoch, prog_bar, reduce_fx, sync_dist
        )

    @property
    def keeps_epoch_values(self) -> bool:
        """Whether any name is averaged over the epoch by batch size."""
        return any(metric.on_epoch for metric in self._metrics.values())

    def step_values(self, prog_bar_only: bool = False) -> dict[str, float]:
        """The last value of each name that is logged by step; reading them waits for the device."""
        return {
            name + ("_step" if metric.on_epoch else ""): float(metric.last)
            for name, metric in self._metrics.items()
            if metric.on_step and (metric.prog_bar or not prog_bar_only)
        }

    def finish_epoch(self) -> dict[str, Tensor]:
        """The epoch value of each name, over all processes, as CPU scalars; starts a new epoch."""
        own = {
            name: (metric.reduce_fx, torch.as_tensor(metric.total).detach().cpu().double(), metric.weight)
            for name, metric in self._metrics.items()
            if metric.on_epoch and metric.total is not None
        }
        both = {name for name, metric in self._metrics.items() if metric.on_step and metric.on_epoch}
        values = _combined(self._strategy.all_gather_object(own))
        for metric in self._metrics.values():
            metric.reset()
        return {name + ("_epoch" if name in both else ""): value for name, value in values.items()}

    def last_values(self) -> dict[str, Tensor]:
        """The last value of each name that is logged by step, as it is."""
        return {name: torch.as_tensor(m.last) for name, m in self._metrics.items() if m.on_step}

    def prog_bar_names(self) -> set[str]:
        """Names to show in the progress bar."""
        return {name for name, metric in self._metrics.items() if metric.prog_bar}


def _combined(by_rank: list[Mapping[str, tuple[str, Tensor, float]]]) -> dict[str, Tensor]:
    totals: dict[str, tuple[str, Tensor, float]] = {}
    for own in by_rank:
        for name, (reduce_fx, total, weight) in own.items():
            if name in totals:
                _, other, more = totals[name]
                total, weight = _COMBINE[reduce_fx](other, total), more + weight
            totals[name] = (reduce_fx, total, weight)
    return {
        name: (total / weight if reduce_fx == "mean" else total).float()
        for name, (reduce_fx, total, weight) in totals.items()
    }
