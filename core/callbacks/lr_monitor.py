"""Logs learning rates."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from ..errors import ConfigurationError, quoted
from .base import Callback
from .trainer_queries import send_to_loggers

if TYPE_CHECKING:
    from ..trainer.trainer import Trainer

__all__ = ["LearningRateMonitor"]


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
        if logging_interval == "epoch":
            self.idle_hooks = frozenset({"on_train_batch_start"})

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        """Forget an earlier run."""
        if stage == "fit":
            self.lrs, self.last_momentum_values, self.last_weight_decay_values = {}, {}, {}

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Check that there is a logger.

        Raises:
            ConfigurationError: There is none.
        """
        if not trainer.loggers and not trainer.fast_dev_run:
            raise ConfigurationError(
                "LearningRateMonitor: the trainer has no logger. Set logger in Trainer, or remove the callback."
            )

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Log the rates of the next step, if its metrics are logged."""
        step = trainer.global_step
        is_logged = (step + 1) % trainer.log_every_n_steps == 0 or trainer.should_stop
        if is_logged and not trainer.progress.is_accumulating:
            self._log(trainer, "step", step)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Log the rates of the epoch."""
        if self.logging_interval != "step":
            self._log(trainer, "epoch", trainer.global_step)

    def state_dict(self) -> dict[str, Any]:
        """The rates that were logged."""
        return {"lrs": {name: list(rates) for name, rates in self.lrs.items()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what :meth:`state_dict` returned."""
        self.lrs = {name: list(rates) for name, rates in state_dict["lrs"].items()}

    def _log(self, trainer: Trainer, moment: str, step: int) -> None:
        values: dict[str, float] = {}
        for name, optimizer, interval in _named(trainer):
            if self.logging_interval is None and interval not in (None, moment):
                continue
            for suffix, group in zip(_suffixes(name, optimizer.param_groups), optimizer.param_groups, strict=True):
                values |= self._values_of(f"{self.log_key_prefix or ''}{name}{suffix}", group)
        trainer.metric_log.update(values)
        send_to_loggers(trainer, values, step)

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
    with_schedule = {id(optimizer) for _, optimizer, _ in found}
    found += [(None, optimizer, None) for optimizer in trainer.optimizers if id(optimizer) not in with_schedule]
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
