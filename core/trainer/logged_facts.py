"""What a Trainer says about its loggers and about what was logged."""

from __future__ import annotations

from typing import Any

import torch

from core.loggers.base import Logger
from core.trainer.metric_log import MetricLog
from core.trainer.run_loggers import read_loggers
from core.trainer.settings import Settings

__all__ = ["LoggedFacts"]


class LoggedFacts:
    """The part of :class:`core.Trainer` with loggers and metrics. Nothing is opened or written by reading it."""

    settings: Settings
    metric_log: MetricLog
    """Everything that the module logs goes through this object."""

    @property
    def loggers(self) -> list[Logger]:
        """Where metrics go; may be set to what the argument ``logger`` takes."""
        return self.metric_log.loggers

    @loggers.setter
    def loggers(self, loggers: Any) -> None:
        self.metric_log.loggers = read_loggers(loggers or False, self.settings.default_root_dir, "loggers")

    @property
    def logger(self) -> Logger | None:
        """The first logger; ``None`` if there is none. May be set."""
        return self.metric_log.loggers[0] if self.metric_log.loggers else None

    @logger.setter
    def logger(self, logger: Any) -> None:
        self.metric_log.loggers = read_loggers(logger or False, self.settings.default_root_dir)

    @property
    def log_dir(self) -> str | None:
        """The folder of the first logger's files; :attr:`default_root_dir` if there is no logger.

        During a run it is the same in every process. ``None`` if the logger's library decides where its files are.
        """
        return self.settings.default_root_dir if self.logger is None else self.logger.log_dir

    @property
    def callback_metrics(self) -> dict[str, torch.Tensor]:
        """The newest value of everything that was logged, as scalars."""
        return self.metric_log.latest

    @property
    def logged_metrics(self) -> dict[str, torch.Tensor]:
        """The newest values that go to loggers, by the names that loggers get, as scalars."""
        return self.metric_log.logged

    @property
    def progress_bar_metrics(self) -> dict[str, float]:
        """The newest values that were logged for the progress bar; reading them waits for the device."""
        return self.metric_log.shown

    @property
    def prog_bar_metrics(self) -> set[str]:
        """The names in :attr:`callback_metrics` that were logged for the progress bar."""
        return self.metric_log.prog_bar_names
