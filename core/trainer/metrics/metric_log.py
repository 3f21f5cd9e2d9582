"""Everything that the Modules of one Trainer log: where it is recorded, published and sent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ...errors import ConfigurationError
from ...loggers.base import Logger
from ...strategies.base import Strategy
from ...strategies.training_step import LoggedValue, log_collector
from ..trainer_state import Progress
from .metric import Value, is_metric_object
from .stage_metrics import StageMetrics


class MetricLog:
    """Everything that the Modules of one Trainer log goes through this object.

    Args:
        loggers: Receive metrics in process 0.
    """

    def __init__(self, loggers: Sequence[Logger] = ()) -> None:
        self.loggers = list(loggers)
        self.stage: StageMetrics | None = None
        """Takes what is logged now; ``None`` if no epoch or evaluation is running."""
        self.prog_bar_names: set[str] = set()
        """Names in :attr:`latest` that were logged for the progress bar."""
        self.is_step_due = False
        """Whether the values of the newest step are to be sent to the loggers when its hooks are done."""
        self.of_epochs: dict[str, Tensor] = {}
        """The values of epochs that go to loggers, by the names that loggers get: what ``validate`` returns."""
        self._published: dict[str, Tensor] = {}
        self._measured: dict[str, tuple[int, int, int]] = {}
        """When each value of :attr:`_published` was measured: the epoch, and how many batches and steps were done."""
        self.judged: dict[str, tuple[int, int, int]] = {}
        """When the value that each scheduler has taken last was measured."""
        self._logger_names: set[str] = set()
        """Names in :attr:`latest` that go to loggers."""
        self._evaluated: dict[str, int] = {}
        """By stage and loader, the number of evaluated batches: the step of values that are logged for each batch."""
        self._discards = False
        """Whether nothing is sent to the loggers."""
        self._ignores = False
        """Whether what is logged outside of epochs and evaluations is no error."""
        self._owner: Any = None
        self._progress = Progress()
        self._is_fitting = False

    def begin(self, module: Any, progress: Progress, is_fitting: bool) -> None:
        """Begin a run of ``module``."""
        self._owner, self._progress, self._is_fitting = module, progress, is_fitting

    @property
    def step(self) -> int:
        """The step that values belong to which are logged now: the number of the newest optimizer step, from 0.

        In ``validate``, ``test`` and ``predict``, the number of steps that were taken before.
        """
        return max(self._progress.step - self._is_fitting, 0)

    def log(self, name: str, value: Any, **options: Any) -> None:
        """Take one value; see :meth:`core.Module.log`.

        Raises:
            ConfigurationError: No epoch or stage is running, the value is not a scalar, or an option is wrong.
        """
        stage = self.stage
        if stage is None:
            if self._ignores:
                return
            raise ConfigurationError(
                f"log({name!r}): no epoch or evaluation is running. Call log in a step, or in a hook from "
                "on_train_start to on_train_epoch_end, from on_validation_start to on_validation_epoch_end, or from "
                "on_test_start to on_test_epoch_end."
            )
        collect = log_collector.get()
        if collect is None:
            stage.log(name, value, owner=self._owner, **options)
            return
        if is_metric_object(value):
            raise ConfigurationError(
                f"log({name!r}): this strategy runs a step in parts, and cannot combine objects of type "
                f"{type(value).__name__}. Log a tensor."
            )
        reduce_fx, batch_size = options.pop("reduce_fx", "mean"), options.pop("batch_size", None)
        collect(
            LoggedValue(
                name=name, value=value, reduce_fx=reduce_fx, batch_size=batch_size, options=options, record=self.log
            )
        )

    # -- what was logged -----------------------------------------------------------------------------------------

    @property
    def latest(self) -> dict[str, Tensor]:
        """The newest value of everything that was logged, as scalars."""
        running = {} if self.stage is None else self.stage.latest_values()
        return {**self._published, **_as_tensors(running)}

    def measured_after(self, step: int) -> dict[str, float]:
        """The values of epochs and passes that ended after ``step``; reading them waits for the device."""
        moments, now = self._measured, self._now
        return {name: float(value) for name, value in self._published.items() if moments.get(name, now)[2] == step}

    @property
    def logged(self) -> dict[str, Tensor]:
        """The newest values that go to loggers, by the names that loggers get."""
        running = {} if self.stage is None else self.stage.step_values(logger_only=True)
        published = {name: value for name, value in self._published.items() if name in self._logger_names}
        return {**published, **_as_tensors(running)}

    @property
    def shown(self) -> dict[str, float]:
        """The newest values for the progress bar; reading them waits for the device."""
        running = {} if self.stage is None else self.stage.step_values(prog_bar_only=True)
        published = {name: value for name, value in self._published.items() if name in self.prog_bar_names}
        return {name: float(value) for name, value in {**published, **running}.items()}

    @property
    def _now(self) -> tuple[int, int, int]:
        progress = self._progress
        return progress.epoch, progress.total_batches, progress.step

    def measured_at(self, name: str) -> tuple[int, int, int]:
        """When the newest value of ``name`` was measured: the epoch, and how many batches and steps were done."""
        running = () if self.stage is None else self.stage.latest_values()
        return self._now if name in running else self._measured.get(name, self._now)

    def update(self, values: Mapping[str, Value]) -> None:
        """Take values that a callback has measured, and sends to the loggers itself."""
        self._published.update(_as_tensors(values))
        self._measured.update(dict.fromkeys(values, self._now))

    def reset(self) -> None:
        """Forget all values."""
        self._measured, self.judged = {}, {}
        self._published, self.prog_bar_names, self._logger_names, self.of_epochs = {}, set(), set(), {}
        self.is_step_due = False

    # -- sending -------------------------------------------------------------------------------------------------

    def publish(self, stage: StageMetrics) -> None:
        """End an epoch of ``stage``: its values become the newest and go to the loggers. Every process calls it.

        It may be called again for values that were logged after the first call.
        """
        if stage.is_unused:
            stage.places.clear()
            return
        self.keep(stage)
        values = stage.finish_epoch(self._owner)
        to_loggers = stage.logger_names()
        self.of_epochs = {**self.of_epochs, **{name: values[name] for name in values if name in to_loggers}}
        self.update(values)
        # Where the values of steps are published too, the plain name is the epoch's value from now on.
        self.update({stage.plain_name(name): value for name, value in values.items()})
        self.prog_bar_names |= stage.prog_bar_names() & set(self._published)
        self._logger_names |= to_loggers & set(self._published)
        self._send({name: value for name, value in values.items() if name in to_loggers}, stage.strategy)

    def exchange(self) -> None:
        """Reduce what the running training has logged with ``sync_dist=True``; every process calls it."""
        if self.stage is not None:
            self.stage.exchange()

    def keep(self, stage: StageMetrics) -> None:
        """Keep the newest values of the steps of ``stage`` when it ends, or while another one runs.

        Every process calls it.
        """
        stage.exchange()
        self.update(stage.latest_values())
        self.prog_bar_names |= stage.prog_bar_names() & set(self._published)
        self._logger_names |= stage.logger_names() & set(self._published)

    def send_step(self, stage: StageMetrics) -> None:
        """Send the values of the newest training step to the loggers; every process calls it."""
        self.is_step_due = False
        stage.exchange()
        self._send(stage.step_values(logger_only=True), stage.strategy)

    def send_evaluated(self, stage: StageMetrics, name: str) -> None:
        """Send the values of the newest batch of the evaluation ``name``, if any are logged by step."""
        if not self.loggers or self._discards:
            return
        key = f"{name}/{stage.dataloader_idx or 0}"
        count = self._evaluated.get(key, 0)
        self._evaluated[key] = count + 1
        values = stage.step_values(logger_only=True)
        if values and stage.strategy.is_global_zero:
            numbers = {name: float(value) for name, value in values.items()}
            for logger in self.loggers:
                logger.log_metrics(dict(numbers), count)

    def _send(self, values: Mapping[str, Value], strategy: Strategy) -> None:
        """Pass ``values`` and the epoch to each logger in process 0; reading them waits for the device."""
        if self._discards or not (values and self.loggers and strategy.is_global_zero):
            return
        numbers: dict[str, float] = {name: float(value) for name, value in values.items()}
        step = self.step
        if "step" in numbers:  # the user's own axis
            step = int(numbers.pop("step"))
        else:
            numbers.setdefault("epoch", self._progress.epoch)
        for logger in self.loggers:
            logger.log_metrics(dict(numbers), step)

    @contextmanager
    def discarding(self) -> Iterator[None]:
        """What is logged within goes to no logger, and is forgotten afterwards. Modules still find the loggers."""
        kept = dict(self.__dict__)
        self._discards, self._published, self.prog_bar_names, self._logger_names = True, {}, set(), set()
        self._measured = {}
        try:
            yield
        finally:
            self.__dict__.update(kept)

    @contextmanager
    def ignoring(self) -> Iterator[None]:
        """What is logged within, while no epoch or evaluation is running, is not recorded and no error."""
        self._ignores = True
        try:
            yield
        finally:
            self._ignores = False

    # -- state ---------------------------------------------------------------------------------------------------

    def adopt_versions(self, versions: Sequence[Any]) -> None:
        """Take the versions that the loggers of another process have."""
        for logger, version in zip(self.loggers, versions, strict=True):
            logger.adopt(version)

    def state_dict(self) -> dict[str, Any]:
        """The values that were published, and what is still to be sent."""
        return {
            "published": self._published,
            "measured": {name: list(moment) for name, moment in self._measured.items()},
            "judged": {key: list(moment) for key, moment in self.judged.items()},
            "prog_bar_names": self.prog_bar_names,
            "logger_names": self._logger_names,
            "evaluated": dict(self._evaluated),
            "is_step_due": self.is_step_due,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the values that :meth:`state_dict` returned."""
        self._published, self.prog_bar_names = state["published"], state["prog_bar_names"]
        self._logger_names, self._evaluated = state["logger_names"], state["evaluated"]
        self.is_step_due = state["is_step_due"]
        self._measured = {name: tuple(moment) for name, moment in state.get("measured", {}).items()}
        self.judged = {key: tuple(moment) for key, moment in state.get("judged", {}).items()}

    def loggers_state(self) -> list[dict[str, Any]]:
        """How far each logger has written, in process 0."""
        return [{"class": type(logger).__qualname__, **logger.state_dict()} for logger in self.loggers]

    def load_loggers_state(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Continue each run with the first logger of its class; every process calls it."""
        left = [*self.loggers]
        for state in states:
            logger = next((each for each in left if type(each).__qualname__ == state["class"]), None)
            if logger is not None:
                left.remove(logger)
                if len(state) > 1:
                    logger.load_state_dict(state)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "stage": None, "_owner": None}


def _as_tensors(values: Mapping[str, Value]) -> dict[str, Tensor]:
    return {name: torch.as_tensor(value) for name, value in values.items()}
