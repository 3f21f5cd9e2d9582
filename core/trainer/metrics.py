"""What a Module logs: the last value of a step, the mean of an epoch.

Values stay tensors on their device until they are read, so logging does not wait for the device.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

from core.errors import ConfigurationError, quoted
from core.strategies.base import Strategy
from core.strategies.logs import LOG_REDUCTIONS, LoggedValue, log_collector

__all__ = ["Logger", "MetricLog", "StageMetrics", "first_dimension"]

Value = Tensor | float


class Logger(Protocol):
    """Receives metrics, in process 0 only."""

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        """Take ``metrics`` as they are after ``step`` optimizer steps."""


class MetricLog:
    """Everything that the Modules of one Trainer log goes through this object.

    Args:
        loggers: Receive metrics in process 0.
    """

    def __init__(self, loggers: Sequence[Logger] = ()) -> None:
        self.loggers = loggers
        self.stage: StageMetrics | None = None
        """Takes what is logged now; ``None`` if no epoch or evaluation is running."""
        self.prog_bar_names: set[str] = set()
        """Names in :attr:`latest` that were logged for the progress bar."""
        self._published: dict[str, Tensor] = {}

    def log(
        self,
        name: str,
        value: Any,
        prog_bar: bool = False,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        reduce_fx: str = "mean",
        sync_dist: bool = False,
        batch_size: int | None = None,
    ) -> None:
        """Take one value; see :meth:`core.Module.log`.

        Raises:
            ConfigurationError: No epoch or stage is running, the value is not a scalar, or an option is wrong.
        """
        stage = self.stage
        if stage is None:
            raise ConfigurationError(
                f"log({name!r}): no epoch or evaluation is running. Call log in a step, or in a hook from "
                "on_train_epoch_start to on_train_epoch_end or from on_validation_start to on_validation_epoch_end."
            )
        collect = log_collector.get()
        if collect is None:
            stage.log(name, value, prog_bar, on_step, on_epoch, reduce_fx, sync_dist, batch_size)
            return
        options = {"prog_bar": prog_bar, "on_step": on_step, "on_epoch": on_epoch, "sync_dist": sync_dist}
        collect(
            LoggedValue(
                name=name, value=value, reduce_fx=reduce_fx, batch_size=batch_size, options=options, record=self.log
            )
        )

    @property
    def latest(self) -> dict[str, Tensor]:
        """The newest value of everything that was logged, as scalars."""
        running = {} if self.stage is None else self.stage.latest_values()
        return {**self._published, **_as_tensors(running)}

    def reset(self) -> None:
        """Forget all values."""
        self._published, self.prog_bar_names = {}, set()

    def publish(self, stage: StageMetrics, step: int) -> None:
        """End an epoch of ``stage``: its values become the newest and go to the loggers. Every process calls it.

        It may be called again for values that were logged after the first call.
        """
        self._published.update(_as_tensors(stage.latest_values()))
        values = stage.finish_epoch()
        self._published.update(values)
        # Where the values of steps are published too, the plain name is the epoch's value from now on.
        self._published.update({stage.plain_name(name): value for name, value in values.items()})
        self.prog_bar_names |= stage.prog_bar_names() & set(self._published)
        self.send_to_loggers(values, step, stage.strategy)

    def send_to_loggers(self, values: Mapping[str, Value], step: int, strategy: Strategy) -> None:
        """Pass ``values`` to each logger in process 0; reading them waits for the device."""
        if values and self.loggers and strategy.is_global_zero:
            numbers = {name: float(value) for name, value in values.items()}
            for logger in self.loggers:
                logger.log_metrics(dict(numbers), step)

    @contextmanager
    def discarding(self) -> Iterator[None]:
        """What is logged within goes to no logger, and is forgotten afterwards."""
        loggers, published, names, stage = self.loggers, self._published, self.prog_bar_names, self.stage
        self.loggers, self._published, self.prog_bar_names = (), {}, set()
        try:
            yield
        finally:
            self.loggers, self._published, self.prog_bar_names, self.stage = loggers, published, names, stage

    def state_dict(self) -> dict[str, Any]:
        """The values that were published."""
        return {"published": self._published, "prog_bar_names": self.prog_bar_names}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the values that :meth:`state_dict` returned."""
        self._published, self.prog_bar_names = state["published"], state["prog_bar_names"]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "stage": None}


class _Metric:
    """One name's values in the running epoch."""

    __slots__ = ("last", "on_epoch", "on_step", "prog_bar", "reduce_fx", "sync_dist", "total", "weight")

    def __init__(self, on_step: bool, on_epoch: bool, prog_bar: bool, reduce_fx: str, sync_dist: bool) -> None:
        self.on_step, self.on_epoch, self.prog_bar = on_step, on_epoch, prog_bar
        self.reduce_fx, self.sync_dist = reduce_fx, sync_dist
        self.last: Value | None = None
        """The value of this epoch's last step that logged it."""
        self.total: Value | None = None
        self.weight: float = 0

    def add(self, value: Value, size: int) -> None:
        if isinstance(value, Tensor):
            value = _wide(value)
        if self.reduce_fx == "mean":
            value = value * size
            self.weight += size
        self.total = value if self.total is None else LOG_REDUCTIONS[self.reduce_fx](self.total, value)

    def reset(self) -> None:
        self.last = self.total = None
        self.weight = 0

    def name(self, name: str, suffix: str) -> str:
        """The name that a value is published under: with the suffix if there are values of both kinds."""
        return name + suffix if self.on_step and self.on_epoch else name

    def state_dict(self) -> list[Any]:
        """The values, and how they are combined."""
        return [getattr(self, name) for name in self.__slots__]

    @classmethod
    def from_state(cls, state: list[Any], device: torch.device) -> _Metric:
        """As :meth:`state_dict` returned it, with tensors on ``device``."""
        metric = cls.__new__(cls)
        for name, value in zip(cls.__slots__, state, strict=True):
            setattr(metric, name, value.to(device) if isinstance(value, Tensor) else value)
        return metric


class StageMetrics:
    """What was logged in the running epoch of one stage (training, validation, …).

    Args:
        strategy: Combines epoch values over processes.
        by_step: Whether ``on_step=None`` means ``True`` and ``on_epoch=None`` ``False``, as in training; otherwise the
            other way round. Only in training do all processes take each step, so that it may be reduced over them.
    """

    def __init__(self, strategy: Strategy, *, by_step: bool) -> None:
        self.batch: Any = None
        """The running batch: its first dimension is the weight of values that are logged without ``batch_size``."""
        self.strategy = strategy
        self.is_ending = False
        """Whether the epoch's last batch is over, so that what is logged now is a value of the epoch."""
        self._by_step = by_step
        self._metrics: dict[tuple[str, bool], _Metric] = {}
        """By the name, and whether it is logged at the epoch's end."""

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
        key = (name, self.is_ending)
        metric = self._metrics.get(key)
        if metric is None:
            metric = self._metrics[key] = self._new(name, prog_bar, on_step, on_epoch, reduce_fx, sync_dist)
        value = _scalar(name, value)
        # The value of an epoch is combined over processes at its end. Where processes may take different numbers of
        # steps, as in evaluation, reducing a step's value would wait for processes that have no such step.
        if metric.sync_dist and metric.on_step and self._by_step:
            value = self.strategy.reduce(torch.as_tensor(value), metric.reduce_fx)
        metric.last = value
        if metric.on_epoch:
            metric.add(value, first_dimension(self.batch) if batch_size is None else batch_size)

    def _new(
        self, name: str, prog_bar: bool, on_step: bool | None, on_epoch: bool | None, reduce_fx: str, sync_dist: bool
    ) -> _Metric:
        if reduce_fx not in LOG_REDUCTIONS:
            raise ConfigurationError(
                f"log({name!r}): unknown reduce_fx={reduce_fx!r}. Valid: {quoted(LOG_REDUCTIONS)}."
            )
        if self.is_ending and on_step:
            raise ConfigurationError(
                f"log({name!r}, on_step=True): the epoch has no further step. Leave out on_step, or log it in a step."
            )
        by_step = self._by_step and not self.is_ending
        on_step = by_step if on_step is None else on_step
        on_epoch = not by_step if on_epoch is None else on_epoch
        if not (on_step or on_epoch):
            raise ConfigurationError(f"log({name!r}): on_step and on_epoch are both False. Set at least one to True.")
        return _Metric(on_step, on_epoch, prog_bar, reduce_fx, sync_dist)

    def step_values(self, prog_bar_only: bool = False) -> dict[str, Value]:
        """The last value in this epoch of each name that is logged by step; reading a value waits for the device."""
        return {
            metric.name(name, "_step"): metric.last
            for (name, _), metric in self._metrics.items()
            if metric.on_step and metric.last is not None and (metric.prog_bar or not prog_bar_only)
        }

    def latest_values(self) -> dict[str, Value]:
        """As :meth:`step_values`; and, where the values of steps and of the epoch are both recorded, by plain name."""
        plain = {
            name: metric.last
            for (name, _), metric in self._metrics.items()
            if metric.on_step and metric.on_epoch and metric.last is not None
        }
        return {**plain, **self.step_values()}

    def plain_name(self, name: str) -> str:
        """The name that a value was logged under, from the name that it is published under."""
        plain = name.removesuffix("_epoch")
        metric = self._metrics.get((plain, False))
        return plain if metric is not None and metric.on_step and metric.on_epoch else name

    def finish_epoch(self) -> dict[str, Tensor]:
        """The epoch value of each name, over all processes, as float64 scalars on the CPU; starts a new epoch."""
        own = {
            metric.name(name, "_epoch"): (
                metric.reduce_fx,
                torch.as_tensor(metric.total).cpu().double(),
                metric.weight,
            )
            for (name, _), metric in self._metrics.items()
            if metric.total is not None
        }
        for metric in self._metrics.values():
            metric.reset()
        return _combined(self.strategy.gather_shards(own))

    def state_dict(self) -> list[Any]:
        """What was logged in the running epoch."""
        return [[*key, metric.state_dict()] for key, metric in self._metrics.items()]

    def load_state_dict(self, state: list[Any]) -> None:
        """Load what :meth:`state_dict` returned."""
        device = self.strategy.root_device
        self._metrics = {(name, ends): _Metric.from_state(metric, device) for name, ends, metric in state}

    def prog_bar_names(self) -> set[str]:
        """Names that the progress bar shows."""
        shown = [(name, metric) for (name, _), metric in self._metrics.items() if metric.prog_bar]
        return {metric.name(name, suffix) for name, metric in shown for suffix in ("_step", "_epoch")}


def _combined(by_shard: list[dict[str, tuple[str, Tensor, float]]]) -> dict[str, Tensor]:
    totals: dict[str, tuple[str, Tensor, float]] = {}
    for own in by_shard:
        for name, (reduce_fx, total, weight) in own.items():
            if name in totals:
                _, other, more = totals[name]
                total, weight = LOG_REDUCTIONS[reduce_fx](other, total), more + weight
            totals[name] = (reduce_fx, total, weight)
    return {
        name: total / weight if reduce_fx == "mean" else total for name, (reduce_fx, total, weight) in totals.items()
    }


def _scalar(name: str, value: Any) -> Value:
    """``value`` as it is now: a new tensor without dimensions, or a number."""
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise ConfigurationError(
                f"log({name!r}): the value is a tensor of shape {tuple(value.shape)}; it must be a scalar, such as "
                "value.mean()."
            )
        return value.detach().reshape(()).clone()
    if isinstance(value, int | float):
        return value
    try:
        return float(value + 0)  # numpy's numbers; the addition raises for strings
    except (TypeError, ValueError):
        raise ConfigurationError(
            f"log({name!r}): the value {value!r} has type {type(value).__name__}; it must be a number or a scalar "
            "tensor."
        ) from None


def _wide(value: Tensor) -> Tensor:
    """``value`` in a dtype in which many such values can be added up."""
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


def _as_tensors(values: Mapping[str, Value]) -> dict[str, Tensor]:
    return {name: torch.as_tensor(value) for name, value in values.items()}
