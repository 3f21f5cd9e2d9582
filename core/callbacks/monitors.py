"""Callbacks that send what they measure to the loggers: devices, learning rates, the pace of training."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import ConfigurationError, WrongTypeError, quoted
from ..hints.argument_checks import check_count
from .agreement import EveryNSteps
from .base import Callback

if TYPE_CHECKING:
    from ..trainer.trainer import Trainer


class DeviceStatsMonitor(Callback):
    """Sends the accelerator's ``get_device_stats`` of process 0's device to the loggers, such as the memory in use.

    They are named ``DeviceStatsMonitor.on_train_batch_end/<name>``, and read as often as metrics are logged.

    Args:
        cpu_stats: Whether to log those of the machine's processor too; by default only the accelerator's.

    Raises:
        ConfigurationError: When ``fit`` starts, the trainer has no logger.
    """

    def __init__(self, cpu_stats: bool | None = None) -> None:
        self.cpu_stats = cpu_stats
        self._cpu: Any = None
        self._steps = EveryNSteps()

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        """Check that there is a logger.

        Raises:
            ConfigurationError: There is none.
        """
        if stage != "fit" or trainer.fast_dev_run:
            return
        _check_loggers("DeviceStatsMonitor", trainer)
        if self.cpu_stats and trainer.strategy.root_device.type != "cpu":
            from ..accelerators import CPUAccelerator

            self._cpu = CPUAccelerator()

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Begin to count steps."""
        self._steps.restart(trainer.global_step)

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Log after a step whose metrics are logged."""
        step = trainer.global_step
        if not self._steps.is_due(step, trainer.log_every_n_steps) or not trainer.is_global_zero:
            return
        strategy = trainer.strategy
        stats = dict(strategy.accelerator.get_device_stats(strategy.root_device))
        if self._cpu is not None:
            stats |= self._cpu.get_device_stats("cpu")
        values = {f"{type(self).__name__}.on_train_batch_end/{name}": float(value) for name, value in stats.items()}
        _send_to_loggers(trainer, values, step - 1)


class LearningRateMonitor(Callback):
    """Sends the learning rates of all optimizers to the loggers and to ``trainer.callback_metrics``.

    They are named after the optimizer, such as ``lr-Adam``; ``lr-Adam-1`` is a second optimizer of the class, and
    ``lr-Adam/pg1`` and ``lr-Adam/pg2`` are the groups of one with several, or ``lr-Adam/<name>`` if a group has a
    ``"name"``. A scheduler's own ``name``, from ``configure_optimizers``, replaces ``lr-Adam``.

    Args:
        logging_interval: ``"step"`` logs the rate of each step that metrics are logged for, ``"epoch"`` that at the
            start of each epoch, ``None`` does as the scheduler's interval says.
        log_momentum: Also log the momentum, or the first beta, as ``lr-Adam-momentum``.
        log_weight_decay: Also log the weight decay, as ``lr-Adam-weight_decay``.
        log_key_prefix: What all these names begin with, such as ``"optimizer/"``.

    Raises:
        ConfigurationError: ``logging_interval`` is something else; or, when training starts, the trainer has no logger.
    """

    def __init__(
        self,
        logging_interval: str | None = None,
        log_momentum: bool = False,
        log_weight_decay: bool = False,
        log_key_prefix: str | None = None,
    ) -> None:
        if logging_interval not in (None, "step", "epoch"):
            raise ConfigurationError(f"logging_interval={logging_interval!r}: must be 'step', 'epoch' or None.")
        self.logging_interval = logging_interval
        self.log_momentum = log_momentum
        self.log_weight_decay = log_weight_decay
        self.log_key_prefix = log_key_prefix
        self.lrs: dict[str, list[float]] = {}
        """The rates that were logged in this run, by name."""
        self.last_momentum_values: dict[str, float] = {}
        """The momentum that was logged last, by name, with ``log_momentum``."""
        self.last_weight_decay_values: dict[str, float] = {}
        """The same with ``log_weight_decay``."""
        self._steps = EveryNSteps()
        if logging_interval == "epoch":
            self.idle_hooks = frozenset({"on_train_batch_start"})

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        """Forget an earlier run."""
        if stage == "fit":
            self.lrs, self.last_momentum_values, self.last_weight_decay_values = {}, {}, {}
            self._steps.restart(0)

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Check that there is a logger.

        Raises:
            ConfigurationError: There is none.
        """
        _check_loggers("LearningRateMonitor", trainer)

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Log the rates of the next step, if its metrics are logged."""
        if trainer.progress.is_accumulating:
            return
        step = trainer.global_step  # how many steps the batch takes is not known yet, if the module steps itself
        if self._steps.is_due(step + 1, trainer.log_every_n_steps) or trainer.should_stop:
            self._log(trainer, "step", step)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Log the rates of the epoch."""
        if self.logging_interval != "step":
            self._log(trainer, "epoch", trainer.global_step)

    def state_dict(self) -> dict[str, Any]:
        """The rates that were logged, and up to which step."""
        return {"lrs": {name: list(rates) for name, rates in self.lrs.items()}, "step": self._steps.step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what :meth:`state_dict` returned."""
        self.lrs = {name: list(rates) for name, rates in state_dict["lrs"].items()}
        self._steps.restart(state_dict["step"])

    def _log(self, trainer: Trainer, moment: str, step: int) -> None:
        values: dict[str, float] = {}
        for name, optimizer, interval in _named(trainer):
            if self.logging_interval is None and interval not in (None, moment):
                continue
            for suffix, group in zip(_suffixes(name, optimizer.param_groups), optimizer.param_groups, strict=True):
                values |= self._values_of(f"{self.log_key_prefix or ''}{name}{suffix}", group)
        trainer.metric_log.update(values)
        _send_to_loggers(trainer, values, step)

    def _values_of(self, name: str, group: dict[str, Any]) -> dict[str, float]:
        values = {name: float(group["lr"])}
        rates = self.lrs.setdefault(name, [])
        rates.append(values[name])
        if self.log_momentum:
            momentum = float(group["betas"][0] if "betas" in group else group.get("momentum", 0))
            values[f"{name}-momentum"] = self.last_momentum_values[f"{name}-momentum"] = momentum
        if self.log_weight_decay:
            decay = float(group.get("weight_decay", 0))
            values[f"{name}-weight_decay"] = self.last_weight_decay_values[f"{name}-weight_decay"] = decay
        return values


def _named(trainer: Trainer) -> list[tuple[str, Any, str | None]]:
    """Each optimizer with its name and the interval of its scheduler; first those that have a scheduler."""
    found: list[tuple[str | None, Any, str | None]] = []
    for schedule in trainer.lr_scheduler_configs:
        optimizer = schedule.scheduler.optimizer
        if all(other is not optimizer for _, other, _ in found):
            found.append((getattr(schedule, "name", None), optimizer, schedule.interval))
    # A strategy may have put another optimizer in the place of the scheduler's, with the same groups.
    with_schedule = {id(optimizer.param_groups[0]) for _, optimizer, _ in found}
    found += [(None, one, None) for one in trainer.optimizers if id(one.param_groups[0]) not in with_schedule]
    seen: Counter[str] = Counter()
    named = []
    for name, optimizer, interval in found:
        if name is None:
            kind = type(optimizer).__name__
            seen[kind] += 1
            name = f"lr-{kind}" if seen[kind] == 1 else f"lr-{kind}-{seen[kind] - 1}"
        named.append((name, optimizer, interval))
    return named


def _suffixes(name: str, groups: list[dict[str, Any]]) -> list[str]:
    names = [group.get("name", f"pg{number}" if len(groups) > 1 else "") for number, group in enumerate(groups, 1)]
    repeated = [each for each, count in Counter(names).items() if count > 1]
    if repeated:
        raise ConfigurationError(
            f"LearningRateMonitor: {name} has several parameter groups named {quoted(repeated)}. "
            "Give each group its own name."
        )
    return [f"/{each}" if each else "" for each in names]


class ThroughputMonitor(Callback):
    """Sends process 0's throughput in training, validation and test to the loggers, under Lightning's names.

    For training, they are ``train/device/batches_per_sec``, ``train/device/samples_per_sec``,
    ``train/device/items_per_sec`` with ``length_fn``, ``train/device/flops_per_sec`` if the module has the number of a
    batch's operations as ``flops_per_batch``, and the totals ``train/time``, ``train/batches``, ``train/samples`` and
    ``train/lengths``, which a resumed run continues. Where several processes divide the data,
    ``train/samples_per_sec`` and its like multiply the rates by their number. Validation within ``fit`` does not count
    as time of training.

    The first batch, in which much is prepared, belongs to the totals alone. To read the clock, process 0 waits for its
    device, as often as metrics are logged.

    Args:
        batch_size_fn: Returns the number of samples of a batch.
        length_fn: Returns the number of items of a batch, such as tokens.
        window_size: The smallest number of batches that a rate is measured over, once there are so many.

    Raises:
        ConfigurationError: When a stage starts, the trainer has no logger; or ``window_size`` is not positive.
        WrongTypeError: A function cannot be called.
    """

    def __init__(
        self,
        batch_size_fn: Callable[[Any], int],
        length_fn: Callable[[Any], int] | None = None,
        window_size: int = 100,
    ) -> None:
        for name, function in (("batch_size_fn", batch_size_fn), ("length_fn", length_fn)):
            if not callable(function) and (function is not None or name == "batch_size_fn"):
                raise WrongTypeError(f"{name}={function!r}: must be a function of a batch that returns a number.")
        check_count("window_size", window_size, 1)
        self.batch_size_fn, self.length_fn, self.window_size = batch_size_fn, length_fn, window_size
        self._steps = EveryNSteps()
        self._meters: dict[str, _Meter] = {}
        self._totals: dict[str, Any] = {}
        """The totals of training before this run was resumed."""

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        """Forget the run before, and check that there is a logger.

        Raises:
            ConfigurationError: There is none.
        """
        self._meters, self._totals = {}, {}
        _check_loggers("ThroughputMonitor", trainer)

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Begin to measure."""
        self._meters["train"] = _Meter(self.window_size, **self._totals)
        self._steps.restart(trainer.global_step)

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Count the batch; log after a step whose metrics are logged."""
        step = trainer.global_step
        is_due = self._steps.is_due(step, trainer.log_every_n_steps)
        self._count("train", trainer, pl_module, batch, is_due, step - 1)

    def on_validation_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Begin to measure, unless it is the sanity check."""
        if trainer.sanity_checking:
            return
        if trainer.is_global_zero:  # what training has queued on the device is not of this stage
            trainer.strategy.accelerator.synchronize(trainer.strategy.root_device)
        self._meters[str(trainer.run.stage)] = _Meter(self.window_size)

    on_test_start = on_validation_start

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Count the batch; log now and then."""
        stage = str(trainer.run.stage)
        if stage in self._meters:
            count = self._meters[stage].batches + 1
            self._count(stage, trainer, pl_module, batch, count % trainer.log_every_n_steps == 0, count - 1)

    on_test_batch_end = on_validation_batch_end

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        """The time that validation took is not of training."""
        if "validate" in self._meters and "train" in self._meters:
            self._meters["train"].skip(time.perf_counter() - self._meters["validate"].began)

    def _count(self, stage: str, trainer: Trainer, module: Any, batch: Any, is_due: bool, step: int) -> None:
        if not trainer.is_global_zero or not trainer.loggers:
            return
        meter, strategy = self._meters[stage], trainer.strategy
        meter.batches += 1
        meter.samples += self.batch_size_fn(batch)
        meter.lengths += 0 if self.length_fn is None else self.length_fn(batch)
        if not is_due and meter.has_read_clock:
            return
        strategy.accelerator.synchronize(strategy.root_device)
        meter.read_clock()
        if not is_due:
            return
        rates = meter.rates(getattr(module, "flops_per_batch", None))
        values = {f"device/{name}_per_sec": rate for name, rate in rates.items()}
        if strategy.data_shards > 1:
            values |= {f"{name}_per_sec": strategy.data_shards * rate for name, rate in rates.items()}
        values |= {"time": meter.time, "batches": meter.batches, "samples": meter.samples}
        if self.length_fn is not None:
            values["lengths"] = meter.lengths
        _send_to_loggers(trainer, {f"{stage}/{name}": float(value) for name, value in values.items()}, step)

    def state_dict(self) -> dict[str, Any]:
        """The totals of training, with which a resumed run goes on."""
        return self._meters["train"].totals() if "train" in self._meters else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what :meth:`state_dict` returned."""
        self._totals = state_dict


class _Meter:
    """The work that one stage has done, now and at an earlier time."""

    def __init__(
        self, window_size: int, batches: int = 0, samples: int = 0, lengths: int = 0, seconds: float = 0.0
    ) -> None:
        self._window_size = window_size
        self.batches, self.samples, self.lengths = batches, samples, lengths
        self.began = time.perf_counter() - seconds
        self._points: deque[tuple[float, int, int, int]] = deque()

    @property
    def time(self) -> float:
        """The seconds until the clock was read last."""
        return self._points[-1][0] - self.began

    @property
    def has_read_clock(self) -> bool:
        """Whether an earlier measurement exists, so that a rate can be computed."""
        return bool(self._points)

    def totals(self) -> dict[str, Any]:
        """What it counts, by the names of its arguments."""
        seconds = time.perf_counter() - self.began
        return {"batches": self.batches, "samples": self.samples, "lengths": self.lengths, "seconds": seconds}

    def read_clock(self) -> None:
        """Note the time, and forget what is older than the window."""
        self._points.append((time.perf_counter(), self.batches, self.samples, self.lengths))
        while len(self._points) > 2 and self.batches - self._points[1][1] >= self._window_size:
            self._points.popleft()

    def skip(self, seconds: float) -> None:
        """Count ``seconds`` that have passed as none."""
        self.began += seconds
        self._points = deque((then + seconds, *counts) for then, *counts in self._points)  # type: ignore[misc]

    def rates(self, flops_per_batch: float | None) -> dict[str, float]:
        """Per second, by what is counted; empty before the second reading of the clock."""
        (first, *before), (last, *now) = self._points[0], self._points[-1]
        if last <= first:
            return {}
        batches, samples, lengths = ((new - old) / (last - first) for new, old in zip(now, before, strict=True))
        rates = {"batches": batches, "samples": samples}
        if lengths:
            rates["items"] = lengths
        if flops_per_batch is not None:
            rates["flops"] = batches * flops_per_batch
        return rates


def _check_loggers(callback: str, trainer: Trainer) -> None:
    if not trainer.loggers and not trainer.fast_dev_run:
        raise ConfigurationError(
            f"{callback}: the trainer has no logger. Set logger in Trainer, or remove the callback."
        )


def _send_to_loggers(trainer: Trainer, values: dict[str, float], step: int) -> None:
    """Pass ``values`` to each logger, in process 0; ``step`` is the number of the optimizer step, from 0."""
    if values and trainer.is_global_zero:
        for logger in trainer.loggers:
            logger.log_metrics(dict(values), step)
