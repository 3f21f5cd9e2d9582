"""Finding loggers: core's own by name, and those of installed distributions by entry point."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from typing import Any

from ..discovery.loading import import_target
from ..discovery.scan import Row
from ..discovery.selection import LOGGERS, survey
from ..errors import BackendError, UnknownNameError, nearest, quoted
from .adapted import adapted
from .base import Logger

__all__ = ["BUILT_IN", "find_loggers", "logger_class"]

BUILT_IN = {
    "comet_ml": "torch_hal.loggers.comet:CometLogger",
    "csv": "torch_hal.loggers.csv_file:CSVLogger",
    "json": "torch_hal.loggers.json_lines:JSONLogger",
    "mlflow": "torch_hal.loggers.ml_flow:MLFlowLogger",
    "tensorboard": "torch_hal.loggers.tensor_board:TensorBoardLogger",
    "wandb": "torch_hal.loggers.weights_and_biases:WandbLogger",
}
"""core's own loggers. An installed distribution cannot replace one."""


def find_loggers(log_with: Any) -> list[type[Logger] | Logger]:
    """The loggers that ``log_with`` requests: a class for each name, and each object as a Logger.

    Args:
        log_with: A name, an object, or a list of both. ``"all"`` stands for every logger that can be used: the built-in
            ones whose package is installed, and those of installed distributions. ``None`` is not a logger.

    Raises:
        BackendError: A named logger is broken, denied, incompatible or in conflict, or its package is not installed.
        UnknownNameError: There is no logger of a name.
        WrongTypeError: An object is not a logger.
    """
    given = [] if log_with is None else list(log_with) if isinstance(log_with, list | tuple) else [log_with]
    found: dict[object, type[Logger] | Logger] = {}
    for item in given:
        name = getattr(item, "value", item)  # Accelerate's LoggerType is an enumeration of names
        if name == "all":
            there = {logger.name for logger in found.values()}
            found |= {logger.name: logger for logger in _usable() if logger.name not in there}
            continue
        logger = logger_class(name) if isinstance(name, str) else adapted(item)
        found[name if isinstance(name, str) else id(item)] = logger  # several objects may have the same name
    return list(found.values())


def logger_class(name: str, argument: str = "log_with") -> type[Logger]:
    """The class of the logger ``name``.

    Args:
        name: Its name.
        argument: The argument that the user gave it in, for errors.

    Raises:
        BackendError: See :func:`find_loggers`.
        UnknownNameError: There is no logger of this name.
    """
    rows = [] if name in BUILT_IN else _installed()
    claiming = [row for row in rows if row.name == name]
    if name not in BUILT_IN and not claiming:
        valid = sorted({*BUILT_IN, *(row.name for row in rows), "all"})
        raise UnknownNameError(
            f"{argument}={name!r}: there is no such logger.{nearest(name, valid)} Installed: {quoted(valid, name)}. "
            f"Others are packages with an entry point in the group {LOGGERS!r}."
        )
    unusable = [row for row in claiming if row.state != "installed"]
    if claiming and len(unusable) == len(claiming):
        raise BackendError(f"{argument}={name!r}: {unusable[0].origin} is {unusable[0].state}: {unusable[0].reason}.")
    usable = next((row for row in claiming if row.state == "installed"), None)
    return _load(argument, name, BUILT_IN[name] if usable is None else usable.module, usable)


def _load(argument: str, name: str, target: str, row: Row | None) -> type[Logger]:
    origin = "" if row is None else f" of {row.origin}"
    try:
        loaded = import_target(target)
    except BackendError as error:
        raise BackendError(f"{argument}={name!r}{origin}: {error}") from error.__cause__
    if not isinstance(loaded, type) or not issubclass(loaded, Logger):
        raise BackendError(f"{argument}={name!r}{origin}: {target!r} is not a subclass of core.loggers.Logger.")
    if loaded.name != name:
        raise BackendError(
            f"{argument}={name!r}{origin}: {target!r} has name={loaded.name!r}. Set name={name!r} in the class."
        )
    if loaded.package and importlib.util.find_spec(loaded.package) is None:
        package = loaded.package.replace("_", "-")
        raise BackendError(
            f"{argument}={name!r}: the package {loaded.package!r} is not installed. Run: pip install {package}"
        )
    return loaded


def _usable() -> Sequence[type[Logger]]:
    """Every logger that can be used; the others are left out, as ``"all"`` names none of them."""
    found = []
    for name in sorted({*BUILT_IN, *(row.name for row in _installed())}):
        try:
            found.append(logger_class(name))
        except BackendError:
            continue
    return found


def _installed() -> list[Row]:
    """The entry points of installed distributions."""
    return list(survey(os.environ).loggers)
