"""Loggers by name: core's own and those of other installed distributions."""

from __future__ import annotations

from typing import Any

from ..discovery.classes import find_class, usable_classes
from ..errors import BackendError
from ..hints.argument_checks import is_list
from .base import Logger
from .foreign_loggers import adapted

__all__ = ["find_loggers", "logger_class"]


def find_loggers(log_with: Any) -> list[type[Logger] | Logger]:
    """The loggers that ``log_with`` requests: a class for each name, and each object as a Logger.

    Args:
        log_with: A name, an object, or a list of both. ``"all"`` stands for every logger that can be used: those whose
            package is installed. ``None`` is not a logger.

    Raises:
        BackendError: A named logger is broken, denied, incompatible or in conflict, or its package is not installed.
        UnknownNameError: There is no logger of a name.
        WrongTypeError: An object is not a logger.
    """
    given = [] if log_with is None else list(log_with) if is_list(log_with) else [log_with]
    found: dict[object, type[Logger] | Logger] = {}
    for item in given:
        name = getattr(item, "value", item)  # Accelerate's LoggerType is an enumeration of names
        if name == "all":
            there = {logger.name for logger in found.values()}
            found |= {logger.name: logger for logger in usable_classes("logger") if logger.name not in there}
            continue
        logger = logger_class(name, "log_with", "all") if isinstance(name, str) else adapted(item)
        found[name if isinstance(name, str) else id(item)] = logger  # several objects may have the same name
    return list(found.values())


def logger_class(name: str, argument: str, *further: str) -> type[Logger]:
    """The class of the logger ``name``.

    Args:
        name: Its name.
        argument: The argument that the user gave it in, for errors.
        *further: Other texts that this argument takes, for errors.

    Raises:
        BackendError: See :func:`find_loggers`.
        UnknownNameError: There is no logger of this name.
    """
    found: type[Logger] = find_class("logger", name, argument, further)
    if found.name != name:
        raise BackendError(
            f"{argument}={name!r}: {found.__module__}.{found.__qualname__} has name={found.name!r}. Set name={name!r} "
            "in the class."
        )
    return found
