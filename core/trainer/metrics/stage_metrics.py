"""Metrics of a stage: the last value of a step, the mean of an epoch.

Values stay tensors on their device until they are read, so logging does not wait for the device.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ...data.batches import first_dimensions
from ...errors import ConfigurationError, WrongTypeError, quoted
from ...logging import get_logger
from ...strategies.base import Strategy
from ...strategies.training_step import LOG_REDUCTIONS
from ..trainer_state import Progress
from .log_exchange import NOWHERE, combined, exchanged
from .metric import Metric, ObjectMetric, Pending, Value, combine_objects, forms_of, is_metric_object

logger = get_logger(__name__)

REDUCTIONS: Mapping[Any, str] = {
    **{name: name for name in LOG_REDUCTIONS},
    "avg": "mean",
    torch.mean: "mean",
    torch.sum: "sum",
    sum: "sum",
    torch.min: "min",
    torch.amin: "min",
    torch.minimum: "min",
    min: "min",
    torch.max: "max",
    torch.amax: "max",
    torch.maximum: "max",
    max: "max",
}
"""The reductions that ``reduce_fx`` may name, or be."""

START, STEP, END = "start", "step", "end"
"""The parts of an epoch: before its batches, within them, and after them."""


class StageMetrics:
    """The metrics logged in the running epoch of one stage (training, validation, …).

    Args:
        strategy: Combines values over processes.
        progress: Of the training. Without one, as in evaluation, ``on_step=None`` means ``False`` in the batches, and
            ``on_epoch=None`` ``True``, and processes may take different numbers of steps.
        of_training: The metrics of the training epoch that a validation interrupts.
    """

    def __init__(
        self, strategy: Strategy, progress: Progress | None = None, of_training: StageMetrics | None = None
    ) -> None:
        self.batch: Any = None
        """The running batch; ``None`` if none is.

        Its first dimension is the weight of values that are logged without ``batch_size``.
        """
        self.strategy = strategy
        self.is_ending = False
        """Whether the epoch's last batch is over, so that what is logged now is a value of the epoch."""
        self.dataloader_idx: int | None = None
        """The number of the running loader, if there are several: a part of the names of what is logged."""
        self.loaders: dict[str, set[int]] = {}
        """The loaders in which this process has logged a name that does not have the loader's number as a part."""
        self.places = set[Any]()
        """The loaders that gave this process batches in this epoch."""
        self._progress, self._of_training = progress, of_training
        self._exchanges = progress is not None and strategy.world_size > 1
        """Whether values of steps are reduced over all processes, with ``sync_dist=True``."""
        self._has_weighted = False
        """Whether a value has been weighted by its batch, so that the user knows if its size is not certain."""
        self._metrics: dict[tuple[str, str], Metric] = {}
        """By the name, and the part of the epoch in which it is logged."""
        self._anywhere: tuple[set[str], set[str]] = (set(), set())
        """Names that any process has logged in an epoch: those for loggers, and those for the progress bar."""
        self._plain: dict[str, str] = {}
        """See :meth:`plain_name`; of what any process has logged."""

    def log(
        self,
        name: str,
        value: Any,
        prog_bar: bool = False,
        logger: bool | None = None,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        reduce_fx: Any = "mean",
        sync_dist: bool = False,
        add_dataloader_idx: bool = True,
        batch_size: int | None = None,
        metric_attribute: str | None = None,
        rank_zero_only: bool = False,
        owner: Any = None,
    ) -> None:
        """Take one value; see :meth:`core.Module.log`. ``owner`` is the module whose attribute a metric object is."""
        if self.dataloader_idx is not None:
            if add_dataloader_idx:
                name = f"{name}/dataloader_idx_{self.dataloader_idx}"
            else:
                self.loaders.setdefault(name, set()).add(self.dataloader_idx)
        key = (name, END if self.is_ending else START if self.batch is None else STEP)
        options = (prog_bar, logger, on_step, on_epoch, reduce_fx, sync_dist, rank_zero_only)
        metric = self._metrics.get(key)
        if metric is None:
            metric = self._new(key, value, metric_attribute, owner, options)
            self._check_distinct(name, metric)
            metric.place = self.dataloader_idx if key[1] == STEP else key[1]
            self._metrics[key] = metric
        elif metric.given != options:
            self._check_same(name, metric, options)
        if rank_zero_only and not self.strategy.is_global_zero:
            return
        if isinstance(metric, ObjectMetric):
            if not metric.is_logged:
                self._check_unshared(name, metric)
            metric.take(name, value)
            return
        value = _scalar(name, value)
        # The value of an epoch is combined over processes at its end, from each process's own values.
        if metric.on_epoch:
            metric.add(value, self._own_weight(name, metric) if batch_size is None else _weight(name, batch_size))
        if self._exchanges and metric.sync_dist and metric.on_step:
            assert self._progress is not None
            metric.pending = Pending(metric.reduce_fx, self._progress.total_batches, value)
        else:
            metric.last = value

    def _own_weight(self, name: str, metric: Metric) -> int:
        """The size of the running batch; the first log says so if it is not certain."""
        if not self._has_weighted and self.batch is not None and metric.reduce_fx == "mean":
            self._has_weighted = True
            sizes = set(first_dimensions(self.batch))
            if len(sizes) != 1 and not isinstance(self.batch, str | int | float):
                logger.warning(
                    "log(%r): %s, so the mean of the epoch may weigh batches wrongly where they differ in size. Pass "
                    "batch_size= to log",
                    name,
                    f"a batch of type {type(self.batch).__name__} does not say how many items it has"
                    if not sizes
                    else f"the tensors of a batch have {sorted(sizes)} rows, and the first one counts",
                )
        return next(first_dimensions(self.batch), 1)

    def _new(
        self, key: tuple[str, str], value: Any, metric_attribute: str | None, owner: Any, options: tuple[Any, ...]
    ) -> Metric:
        prog_bar, logger, on_step, on_epoch, reduce_fx, sync_dist, rank_zero_only = options
        name, moment = key
        if not isinstance(name, str):
            raise WrongTypeError(f"log({name!r}): the name of a metric must be a str. Call log(name, value).")
        if not name.strip():
            raise ConfigurationError(
                f"log({name!r}): the name of a metric is empty. Call log(name, value) with a name."
            )
        flags = {"prog_bar": prog_bar, "sync_dist": sync_dist, "rank_zero_only": rank_zero_only}
        for option, given in {**flags, "logger": logger, "on_step": on_step, "on_epoch": on_epoch}.items():
            if not isinstance(given, bool) and not (given is None and option not in flags):
                raise WrongTypeError(f"log({name!r}, {option}={given!r}): must be True or False.")
        if moment != STEP and on_step:
            why = "the epoch has no further step" if moment == END else "no step is running"
            raise ConfigurationError(f"log({name!r}, on_step=True): {why}. Leave out on_step, or log it in a step.")
        if moment != STEP and on_epoch is False:
            raise ConfigurationError(
                f"log({name!r}, on_epoch=False): what is logged before or after the steps of an epoch is a value of "
                "the epoch. Leave out on_epoch."
            )
        by_step = self._progress is not None and moment == STEP
        on_step = by_step if on_step is None else on_step
        on_epoch = not by_step if on_epoch is None else on_epoch
        if not (on_step or on_epoch):
            raise ConfigurationError(f"log({name!r}): on_step and on_epoch are both False. Set at least one to True.")
        if rank_zero_only and sync_dist:
            raise ConfigurationError(
                f"log({name!r}, rank_zero_only=True, sync_dist=True): the other processes have no value to "
                "reduce. Leave out one of the two."
            )
        kind: Callable[..., Metric] = Metric
        if is_metric_object(value):
            kind = ObjectMetric.of(name, value, metric_attribute, owner)
        elif metric_attribute is not None:
            raise ConfigurationError(
                f"log({name!r}, metric_attribute={metric_attribute!r}): the value {value!r} is not a metric object. "
                "Leave out metric_attribute."
            )
        return kind(on_step, on_epoch, prog_bar, logger is not False, _reduction(name, reduce_fx), sync_dist, options)

    def _check_distinct(self, name: str, metric: Metric) -> None:
        """Reject two metrics that would be published under one name: ``a`` by step and by epoch, and ``a_step``."""
        own = metric.published_names(name)
        for (other, _), before in self._metrics.items():
            if other != name and (shared := own & before.published_names(other)):
                longer, shorter = sorted((name, other), key=len, reverse=True)
                raise ConfigurationError(
                    f"log({name!r}): {quoted(sorted(shared))} would have the values of both {shorter!r} and "
                    f"{longer!r}: what is logged with on_step=True and on_epoch=True is published as "
                    f"{shorter + '_step'!r} and {shorter + '_epoch'!r}. Give one of them another name, or log "
                    f"{shorter!r} with only one of the two options."
                )

    def _check_unshared(self, name: str, metric: ObjectMetric) -> None:
        """Reject an object that has been updated with other batches, which its value would be of too."""
        own, of_training = self._metrics, {} if self._of_training is None else self._of_training._metrics
        for metrics in (own, of_training):
            for (other, _), before in metrics.items():
                if not (isinstance(before, ObjectMetric) and before.value is metric.value and before.is_logged):
                    continue
                if metrics is of_training or (isinstance(metric.place, int) and metric.place != before.place):
                    raise ConfigurationError(
                        f"log({name!r}): self.{metric.attribute} has been logged as {other!r} in this epoch, for other "
                        "batches, and its value would be of these too. Create a metric for each stage and each loader."
                    )

    def _check_same(self, name: str, metric: Metric, options: tuple[Any, ...]) -> None:
        if metric.given is None:  # read from a checkpoint
            metric.given = options
            return
        names = ("prog_bar", "logger", "on_step", "on_epoch", "reduce_fx", "sync_dist", "rank_zero_only")
        changed = [
            f"{option}={now!r} (before: {before!r})"
            for option, before, now in zip(names, metric.given, options, strict=True)
            if before != now
        ]
        raise ConfigurationError(
            f"log({name!r}): called with {', '.join(changed)}. One name has the same options in all steps; use another "
            "name."
        )

    def exchange(self) -> None:
        """Reduce what was logged in training steps with ``sync_dist=True`` since the last time; every process calls it.

        Raises:
            ConfigurationError: The processes have not logged the same names for the same batches.
        """
        if not self._exchanges:
            return
        metrics = {name: metric for (name, _), metric in self._metrics.items() if metric.pending is not None}
        own = {name: metric.pending for name, metric in metrics.items() if metric.pending is not None}
        for name, value in exchanged(self.strategy, own).items():
            metrics[name].last, metrics[name].pending = value, None

    def drop_pending(self) -> None:
        """Forget what was not exchanged."""
        for metric in self._metrics.values():
            metric.pending = None

    def step_values(self, prog_bar_only: bool = False, logger_only: bool = False) -> dict[str, Value]:
        """The last value in this epoch of each name that is logged by step; reading a value waits for the device."""
        return {
            metric.name(name, "_step"): metric.last
            for (name, _), metric in self._metrics.items()
            if metric.on_step
            and metric.last is not None
            and (metric.prog_bar or not prog_bar_only)
            and (metric.to_logger or not logger_only)
        }

    def latest_values(self) -> dict[str, Value]:
        """Like :meth:`step_values`; where the values of steps and of the epoch are both recorded, by plain name."""
        plain = {
            name: metric.last
            for (name, _), metric in self._metrics.items()
            if metric.on_step and metric.on_epoch and metric.last is not None
        }
        return {**plain, **self.step_values()}

    @property
    def is_unused(self) -> bool:
        """Whether nothing was ever logged, and no other process could have."""
        return not self._metrics and self.strategy.world_size == 1

    def plain_name(self, name: str) -> str:
        """The name that a value of the last epoch was logged under, from the name that it is published under."""
        return self._plain.get(name, name)

    def finish_epoch(self, owner: Any = None) -> dict[str, Tensor]:
        """The epoch value of each name, over all processes, as float64 scalars on the CPU; starts a new epoch.

        Args:
            owner: The module that metric objects are attributes of.
        """
        own = {
            metric.name(name, "_epoch"): (
                metric.reduce_fx,
                torch.as_tensor(metric.total).cpu().double(),
                metric.weight,
                metric.place if metric.sync_dist else NOWHERE,
            )
            for (name, _), metric in self._metrics.items()
            if metric.total is not None
        }
        objects = {
            metric.name(name, "_epoch"): (metric.attribute, forms_of(metric.value))
            for (name, _), metric in self._metrics.items()
            if isinstance(metric, ObjectMetric) and metric.on_epoch and metric.is_logged
        }
        own_objects = [
            metric for metric in self._metrics.values() if isinstance(metric, ObjectMetric) and metric.is_logged
        ]
        plain = {metric.name(name, "_epoch"): name for (name, _), metric in self._metrics.items() if metric.on_epoch}
        names = self.logger_names(), self.prog_bar_names(), plain
        of_epoch = self.strategy.global_rank, (own, self.places | {START, END})
        by_shard = self.strategy.gather_shards((of_epoch, objects, names))
        values = combined(dict(of_epoch for of_epoch, *_ in by_shard))
        values |= combine_objects([objects for _, objects, _ in by_shard], owner)
        # A process without batches has logged nothing itself.
        of_loggers, of_bar, by_name = zip(*(names for *_, names in by_shard), strict=True)
        self._anywhere, self._plain = (set().union(*of_loggers), set().union(*of_bar)), dict(ChainMap(*by_name))
        for logged in own_objects:
            logged.value.reset()
        for metric in self._metrics.values():
            metric.reset()
        self.places.clear()
        return values

    def state_dict(self) -> list[Any]:
        """What was logged in the running epoch."""
        return [[*key, metric.state_dict()] for key, metric in self._metrics.items()]

    def load_state_dict(self, state: list[Any], owner: Any = None) -> None:
        """Load what :meth:`state_dict` returned; ``owner`` is the module that metric objects are attributes of."""
        device = self.strategy.root_device
        self._metrics = {
            (name, moment): (ObjectMetric if "attribute" in content else Metric).from_state(content, device, owner)
            for name, moment, content in state
        }

    def logger_names(self) -> set[str]:
        """Names that go to loggers."""
        return self._names(lambda metric: metric.to_logger) | self._anywhere[0]

    def prog_bar_names(self) -> set[str]:
        """Names that the progress bar shows."""
        return self._names(lambda metric: metric.prog_bar) | self._anywhere[1]

    def _names(self, wanted: Callable[[Metric], bool]) -> set[str]:
        shown = [(name, metric) for (name, _), metric in self._metrics.items() if wanted(metric)]
        return {metric.name(name, suffix) for name, metric in shown for suffix in ("_step", "_epoch")}


def _reduction(name: str, given: Any) -> str:
    try:
        return REDUCTIONS[given.lower() if isinstance(given, str) else given]
    except (KeyError, TypeError):  # TypeError: it cannot be a key
        raise ConfigurationError(
            f"log({name!r}): unknown reduce_fx={given!r}. Valid: {quoted(LOG_REDUCTIONS)}, and torch's functions of "
            "these names. Log an object with compute() and reset(), such as a torchmetrics.Metric, for any other."
        ) from None


def _scalar(name: str, value: Any) -> Value:
    """``value`` as it is now: a new tensor without dimensions, or a number."""
    if isinstance(value, Tensor):
        # A DTensor, such as the norm of a divided gradient, has its parts in all processes.
        whole: Tensor = value.full_tensor() if hasattr(value, "full_tensor") else value
        if whole.numel() != 1:
            raise ConfigurationError(
                f"log({name!r}): the value is a tensor of shape {tuple(value.shape)}; it must be a scalar, such as "
                "value.mean()."
            )
        if whole.is_complex():
            raise ConfigurationError(
                f"log({name!r}): the value is complex; it must be real, such as value.abs() or value.real."
            )
        return whole.detach().reshape(()).clone()
    if isinstance(value, int | float):
        return value
    try:
        return float(value + 0)  # numpy's numbers; the addition raises for strings
    except (TypeError, ValueError):
        raise ConfigurationError(
            f"log({name!r}): the value {value!r} has type {type(value).__name__}; it must be a number or a scalar "
            "tensor."
        ) from None


def _weight(name: str, batch_size: Any) -> Any:
    """``batch_size`` as a number, if it is one by which a value can be weighted."""
    if isinstance(batch_size, Tensor) and batch_size.numel() == 1:
        batch_size = batch_size.item()
    if isinstance(batch_size, int | float) and not isinstance(batch_size, bool) and batch_size >= 0:
        return batch_size
    raise ConfigurationError(
        f"log({name!r}, batch_size={batch_size!r}): must be the number of items in the batch, ≥ 0."
    )
