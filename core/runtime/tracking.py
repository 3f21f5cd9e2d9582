"""Trackers: the loggers of a run, and what it logs."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from ..discovery.classes import class_names
from ..errors import ConfigurationError, UnknownNameError, WrongTypeError, nearest, quoted
from ..loggers.base import Logger, NoExperiment
from ..loggers.find import find_loggers
from ..loggers.values import plain
from ..logging import get_logger
from .lifecycle import Life

logger = get_logger(__name__)


class Tracking:
    """Logs with the trackers of a run.

    Args:
        life: Of the run.
        log_with: The user's trackers.
        logging_dir: The folder for their files.

    Raises:
        ConfigurationError: A tracker writes files, and there is no folder.
    """

    def __init__(self, life: Life, log_with: Any, logging_dir: str | os.PathLike[str] | None) -> None:
        self._life = life
        self.trackers: list[Logger] = []
        """The trackers that are open."""
        self._requested = find_loggers(log_with)
        self._logging_dir = None if logging_dir is None else os.fspath(logging_dir)
        self._warns_of_infinite_loss = self._warns_of_no_trackers = True
        for tracker in self._requested:
            if isinstance(tracker, Logger):
                tracker.process_index = life.strategy.global_rank
            if logging_dir is None and isinstance(tracker, type) and tracker.requires_logging_directory:
                raise ConfigurationError(
                    f"log_with={tracker.name!r} writes files, but project_dir is not set. Set project_dir or "
                    "logging_dir to the folder for them."
                )

    def init_trackers(
        self, project_name: str, config: Any = None, init_kwargs: Mapping[str, Mapping[str, Any]] | None = None
    ) -> None:
        """See :meth:`core.Runtime.init_trackers`."""
        if not isinstance(project_name, str):
            raise WrongTypeError(f"init_trackers: project_name={project_name!r}: must be a text, such as 'my-project'.")
        if self._life.plan.runs_function:
            self._life.live()
        if self.trackers:
            raise ConfigurationError("init_trackers: the trackers are open already. Call end_training first.")
        self._warns_of_no_trackers = False  # a script may choose by an option whether there are any
        options = self._options("init_kwargs", init_kwargs)
        trackers: list[Logger] = []
        for requested in self._requested:
            if isinstance(requested, type):
                tracker = requested.for_project(project_name, self._logging_dir, **options.get(requested.name, {}))
            else:
                tracker = requested
            tracker.process_index = self._life.strategy.global_rank
            tracker.start()
            trackers.append(tracker)
            self.trackers = trackers
        if config is not None:
            for tracker in self.trackers:
                tracker.log_hyperparams(config)

    def log(
        self,
        values: Mapping[str, Any],
        step: int | None = None,
        log_kwargs: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """See :meth:`core.Runtime.log`."""
        if not isinstance(values, Mapping):
            raise WrongTypeError(
                f"log: values is {values!r:.100}: must be a mapping of names to values, such as {{'loss': 0.5}}."
            )
        options = self._options("log_kwargs", log_kwargs)
        trackers = self._open_trackers("log")
        if trackers and self._warns_of_infinite_loss and self._life.strategy.global_rank == 0:
            self._check_losses(values, step)
        for tracker in trackers:
            tracker.log_metrics(values, step=step, **options.get(tracker.name, {}))

    def _check_losses(self, values: Mapping[str, Any], step: int | None) -> None:
        """Warn once of a loss that is no number; the trackers read it too."""
        for name, value in plain({name: value for name, value in values.items() if "loss" in str(name)}).items():
            if isinstance(value, int | float) and not math.isfinite(value):
                self._warns_of_infinite_loss = False
                logger.warning(
                    "log: %r is %s%s, if not since a step before, and training goes on with it. Look for such values "
                    "in the data, lower the learning rate, or clip gradients. torch.autograd.set_detect_anomaly(True) "
                    "finds the operation that they come from",
                    name,
                    value,
                    "" if step is None else f" in step {step}",
                )
                return

    def log_images(
        self,
        values: Mapping[str, Any],
        step: int | None = None,
        log_kwargs: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """See :meth:`core.Runtime.log_images`."""
        options = self._options("log_kwargs", log_kwargs)
        for tracker in self._open_trackers("log_images"):
            tracker.log_images(values, step=step, **options.get(tracker.name, {}))

    def get_tracker(self, name: str, unwrap: bool = False) -> Any:
        """See :meth:`core.Runtime.get_tracker`."""
        names = [tracker.name for tracker in self._requested]
        if name not in names:
            raise UnknownNameError(
                f"get_tracker({name!r}): log_with has no such tracker.{nearest(name, names)} Trackers: {quoted(names)}."
            )
        for tracker in self._open_trackers("get_tracker"):
            if tracker.name == name:
                return tracker.experiment if unwrap else tracker
        return NoExperiment()

    def end(self, failed: bool) -> None:
        """End the trackers' runs."""
        trackers, self.trackers = self.trackers, []
        with ExitStack() as stack:  # one that fails keeps no other open
            for tracker in reversed(trackers):
                stack.callback(tracker.finish, "failed" if failed else "success")

    def _open_trackers(self, method: str) -> list[Logger]:
        if not self._requested and self._warns_of_no_trackers:
            self._warns_of_no_trackers = False
            logger.warning(
                "%s: this Runtime has no trackers, so nothing is written. Give it log_with=, such as 'tensorboard', "
                "and call runtime.init_trackers(project_name)",
                method,
            )
        if self._requested and not self.trackers and self._life.strategy.global_rank == 0:
            raise ConfigurationError(
                f"{method}: the trackers are not open. Call runtime.init_trackers(project_name) before."
            )
        return self.trackers

    def _options(self, argument: str, given: Mapping[str, Mapping[str, Any]] | None) -> Mapping[str, Mapping[str, Any]]:
        """``given``, whose keys may also name trackers that this run does not use: scripts choose them by an option."""
        used = {tracker.name for tracker in self._requested}
        for name in given or {}:
            if name not in used and name not in (valid := sorted({*used, *class_names("logger")})):
                raise UnknownNameError(
                    f"{argument}[{name!r}]: there is no such tracker.{nearest(name, valid)} Its keys are the names of "
                    f"trackers: {quoted(valid)}."
                )
        return given or {}
