"""The loggers of a Trainer: the argument ``logger``, and what happens to them at the start and the end of a run."""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from ...errors import ConfigurationError, WrongTypeError
from ...hints.argument_checks import instead_of_class, is_list, is_url
from ...loggers.base import Logger, NoLogger
from ...loggers.find import adapted, logger_class
from ...loggers.folders import FolderLogger
from ...loggers.tensor_board import TensorBoardLogger
from ...loggers.text_files import CSVLogger
from ...strategies.base import Strategy
from ..module.hparams import merged_hyperparameters

messages = logging.getLogger(__name__)

PROJECT = "core_logs"
"""The folder of the default logger, and the project of loggers that are requested by name."""


def read_loggers(given: Any, root: str, argument: str = "logger", writes: bool = True) -> list[Logger]:
    """The loggers that ``given`` requests.

    Args:
        given: ``True`` or ``None`` for the default, ``False`` for none; a name, an object, or a list of both.
        root: The folder below which files are written.
        argument: What messages call it.
        writes: Whether they write; otherwise, as many that write nothing.

    Raises:
        BackendError: The package of a named logger is not installed.
        UnknownNameError: There is no logger of a name.
        WrongTypeError: An object is not a logger.
    """
    if given is False:
        return []
    if is_url(root) and writes and (given in (None, True) or _has_name(given)):
        raise ConfigurationError(
            f"{argument}={given!r}, default_root_dir={root!r}: loggers write to this machine, not to a URL. Set "
            f"{argument}=CSVLogger('logs') or an object of another class in core.loggers, or {argument}=False."
        )
    if given is None or given is True:
        loggers = [_default(root)]
    else:
        items = list(given) if is_list(given) else [given]
        loggers = [_logger(item, root, argument) for item in items]
    return loggers if writes else without_effect(loggers)


def _has_name(given: Any) -> bool:
    return any(isinstance(item, str) for item in (given if is_list(given) else [given]))


def _default(root: str) -> Logger:
    if importlib.util.find_spec("tensorboard") is None:
        return CSVLogger(root, name=PROJECT)
    return TensorBoardLogger(root, name=PROJECT)


def _logger(item: Any, root: str, argument: str) -> Logger:
    if isinstance(item, str):
        kind = logger_class(item, "logger")
        if issubclass(kind, FolderLogger):
            return kind(root, name=PROJECT)
        return kind.for_project(PROJECT, root)
    if isinstance(item, Logger):
        return item
    if isinstance(item, bool | type) or not callable(getattr(item, "log_metrics", None)):
        raise WrongTypeError(
            f"{argument}: {item!r} is not a logger. Pass True, False, a name such as 'csv', an object of a class in "
            "core.loggers, an object with a method log_metrics(metrics, step), or a list of names and objects."
            f"{instead_of_class(item)}"
        )
    return adapted(item)


def without_effect(loggers: Sequence[Logger]) -> list[Logger]:
    """Loggers that write nothing, one for each of ``loggers``: code that uses them still runs."""
    return [NoLogger() for _ in loggers]


def begin_loggers(
    loggers: Sequence[Logger], strategy: Strategy, ckpt_path: str | os.PathLike[str] | None, makes_files: bool
) -> None:
    """Open the runs in process 0, and tell the other processes their versions; every process calls this.

    Args:
        loggers: The loggers.
        strategy: The strategy, whose processes run.
        ckpt_path: The checkpoint that is resumed; the run in whose folder it is continues.
        makes_files: Whether anything is going to be logged.
    """
    for logger in loggers:
        logger.process_index = strategy.global_rank
        if ckpt_path is not None and isinstance(logger, FolderLogger):
            logger.continue_at(ckpt_path)
    if not loggers:
        return
    reserved = _reserve(loggers, makes_files) if strategy.is_global_zero else []
    if strategy.world_size > 1:
        versions = strategy.broadcast(reserved)
        for logger, version in zip(loggers, versions, strict=True):
            if not strategy.is_global_zero:
                logger.adopt(version)


def _reserve(loggers: Sequence[Logger], makes_files: bool) -> list[Any]:
    """The versions of the loggers; those of different kinds with the same folder of runs share one."""
    versions: list[Any] = []
    for position, logger in enumerate(loggers):
        if isinstance(logger, FolderLogger):
            for other, version in zip(loggers[:position], versions, strict=True):
                is_next_to = isinstance(other, FolderLogger) and other.root_dir == logger.root_dir
                if is_next_to and type(other) is not type(logger) and not logger.is_decided:
                    logger.adopt(version)
        versions.append(logger.reserve(makes_files))
    return versions


def log_start(loggers: Sequence[Logger], module: Any, datamodule: Any) -> None:
    """Write what is known when everything is prepared: the hyperparameters, and the module's graph.

    Raises:
        ConfigurationError: Module and DataModule have a hyperparameter of the same name with different values.
    """
    params = merged_hyperparameters(module, datamodule)
    for logger in loggers:
        if params is not None:
            logger.log_hyperparams(params)
        if getattr(logger, "logs_graph", False) is True:
            try:
                logger.log_graph(module)
            except ConfigurationError as error:
                raise ConfigurationError(f"TensorBoardLogger(log_graph=True): {error}") from None


def end_loggers(loggers: Sequence[Logger], status: str, ends_process: bool) -> None:
    """Write what is buffered, in every process; more may be logged afterwards, unless the process ends.

    Args:
        loggers: The loggers.
        status: ``"success"``, ``"failed"`` or ``"interrupted"``.
        ends_process: Whether this process ends with the run, so that nothing else closes them.
    """
    with ExitStack() as stack:  # one that fails keeps no other open
        for logger in reversed([each for each in loggers if each.process_index == 0]):
            stack.callback(_end, logger, status, ends_process)


def _end(logger: Logger, status: str, ends_process: bool) -> None:
    try:
        (logger.finish if ends_process else logger.finalize)(status)
    except Exception:
        if status == "success":
            raise
        messages.exception("%r could not be closed", logger)  # the error that ended the run is the one to show
