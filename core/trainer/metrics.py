"""What a Module logs: the last value of a step, the mean of an epoch.

Values stay tensors on their device until somebody reads them, so that logging waits for no device.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from core.errors import ConfigurationError, quoted
from core.strategies.base import Strategy

__all__ = ["MetricLog", "first_dimension"]

Value = Tensor | float


class _Metric:
    """One name's values in the running epoch."""

    __slots__ = ("last", "on_epoch", "on_step", "prog_bar", "reduce_fx", "sync_dist", "total", "weight")

    def __init__(self, on_step: bool, on_epoch: bool, prog_bar: bool, reduce_fx: str, sync_dist: bool) -> None:
        self.on_step, self.on_epoch, self.prog_bar = on_step, on_epoch, prog_bar
        self.reduce_fx, self.sync_dist = reduce_fx, sync_dist
        self.last: Value = 0.0
        self.total: Value | None = None
        self.weight: float = 0

    def add(self, value: Value, size: int) -> None:
        if isinstance(value, Tensor):
            value = _wide(value)
        if self.reduce_fx == "mean":
            value = value * size
            self.weight += size
        self.total = value if self.total is None else _COMBINE[self.reduce_fx](self.total, value)

    def reset(self) -> None:
        self.total, self.weight = None, 0

    def name(self, name: str, suffix: str) -> str:
        """Under which name a value is published: values of both kinds are told apart."""
        return name + suffix if self.on_step and self.on_epoch else name


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
        self.batch: Any = None
        """The running batch: its first dimension is the weight of values that are logged without one."""
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
            metric = self._metrics[name] = self._new(name, prog_bar, on_step, on_epoch, reduce_fx, sync_dist)
        value = _scalar(name, value)
        if metric.sync_dist:
            value = self._strategy.reduce(torch.as_tensor(value), metric.reduce_fx)
        metric.last = value
        if metric.on_epoch:
            metric.add(value, first_dimension(self.batch) if batch_size is None else batch_size)

    def _new(
        self, name: str, prog_bar: bool, on_step: bool | None, on_epoch: bool | None, reduce_fx: str, sync_dist: bool
    ) -> _Metric:
        if reduce_fx not in _COMBINE:
            raise ConfigurationError(f"reduce_fx={reduce_fx!r} for {name!r}: unknown. Valid: {quoted(_COMBINE)}.")
        on_step = self._defaults[0] if on_step is None else on_step
        on_epoch = self._defaults[1] if on_epoch is None else on_epoch
        if not (on_step or on_epoch):
            raise ConfigurationError(f"log({name!r}): on_step and on_epoch are false. Valid: one of them, or both.")
        return _Metric(on_step, on_epoch, prog_bar, reduce_fx, sync_dist)

    def step_values(self, prog_bar_only: bool = False) -> dict[str, Value]:
        """The last value of each name that is logged by step; to read them is to wait for the device."""
        return {
            metric.name(name, "_step"): metric.last
            for name, metric in self._metrics.items()
            if metric.on_step and (metric.prog_bar or not prog_bar_only)
        }

    def finish_epoch(self) -> dict[str, Tensor]:
        """The epoch value of each name, over all processes, as float64 scalars on the CPU; starts a new epoch."""
        own = {
            metric.name(name, "_epoch"): (
                metric.reduce_fx,
                torch.as_tensor(metric.total).cpu().double(),
                metric.weight,
            )
            for name, metric in self._metrics.items()
            if metric.total is not None
        }
        for metric in self._metrics.values():
            metric.reset()
        return _combined(self._strategy.gather_shards(own))

    def prog_bar_names(self) -> set[str]:
        """Names to show in the progress bar."""
        chosen = {name: metric for name, metric in self._metrics.items() if metric.prog_bar}
        return {metric.name(name, suffix) for name, metric in chosen.items() for suffix in ("_step", "_epoch")}


def _combined(by_shard: list[dict[str, tuple[str, Tensor, float]]]) -> dict[str, Tensor]:
    totals: dict[str, tuple[str, Tensor, float]] = {}
    for own in by_shard:
        for name, (reduce_fx, total, weight) in own.items():
            if name in totals:
                _, other, more = totals[name]
                total, weight = _COMBINE[reduce_fx](other, total), more + weight
            totals[name] = (reduce_fx, total, weight)
    return {
        name: total / weight if reduce_fx == "mean" else total for name, (reduce_fx, total, weight) in totals.items()
    }


def _scalar(name: str, value: Any) -> Value:
    """``value`` as it is now: a tensor of no dimensions that nobody else holds, or a number."""
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise ConfigurationError(f"log({name!r}): given a tensor of shape {tuple(value.shape)}. Valid: a scalar.")
        return value.detach().reshape(()).clone()
    if isinstance(value, int | float):
        return value
    try:
        return float(value + 0)  # numpy's numbers; a text is refused by the addition
    except (TypeError, ValueError):
        raise ConfigurationError(
            f"log({name!r}): given {value!r} of type {type(value).__name__}. Valid: a number or a scalar tensor."
        ) from None


def _wide(value: Tensor) -> Tensor:
    """``value`` in a dtype that many of its kind can be added up in."""
    if value.dtype in _WIDE:
        return value
    return value.float() if value.is_floating_point() else value.long()


_WIDE = frozenset({torch.float32, torch.float64, torch.int64})


def first_dimension(batch: Any) -> int:
    """The size of the first dimension of the first tensor in ``batch`` that has one; 1 where there is none."""
    return next(_first_dimensions(batch), 1)


def _first_dimensions(data: Any) -> Iterator[int]:
    if isinstance(data, Tensor):
        if data.dim():
            yield data.shape[0]
        return
    if isinstance(data, Mapping):
        data = data.values()
    elif dataclasses.is_dataclass(data):
        data = [getattr(data, field.name, None) for field in dataclasses.fields(data)]
    elif not isinstance(data, list | tuple):
        return
    for item in data:
        yield from _first_dimensions(item)
