"""Loggers by name, core's own and those of other distributions; and objects of other libraries' shapes as loggers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..discovery.classes import find_class, usable_classes
from ..errors import BackendError, WrongTypeError
from ..hints.argument_checks import instead_of_class, is_list
from .base import Logger

METHODS = {
    "metrics": ("log_metrics", "log"),
    "hyperparams": ("log_hyperparams", "store_init_configuration"),
    "close": ("finish",),
    "finalize": ("finalize",),
}
"""The methods that are called, by what for; the first that the object has."""


def adapted(given: Any) -> Logger:
    """``given`` as a Logger: itself, or one that calls its methods.

    Raises:
        WrongTypeError: It has neither ``log_metrics`` nor ``log``.
    """
    if isinstance(given, Logger):
        return given
    methods = callable(getattr(given, "log_metrics", None) or getattr(given, "log", None))
    if isinstance(given, type) or not methods or hasattr(given, "on_train_epoch_end"):  # a callback has a log, too
        raise WrongTypeError(
            f"log_with: {given!r} is not a logger. Pass a name, an object of a subclass of core.loggers.Logger, or an "
            "object with Accelerate's methods of a tracker (log, store_init_configuration, finish)."
            f"{instead_of_class(given)}"
        )
    return _Adapted(given)


class _Adapted(Logger):
    """Calls the methods of ``given``, in process 0, or in all if it has ``main_process_only = False``."""

    def __init__(self, given: Any) -> None:
        super().__init__()
        self.given = given
        self.__dict__["name"] = str(getattr(given, "name", type(given).__name__))  # of this object, not the class

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "process_index" and not getattr(getattr(self, "given", None), "main_process_only", True):
            value = 0
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        if name in ("given", "__setstate__"):
            raise AttributeError(name)
        return getattr(self.given, name)

    def open(self) -> Any:
        start = getattr(self.given, "start", None)
        if callable(start):
            start()
        for name in ("tracker", "experiment"):
            if hasattr(self.given, name):
                return getattr(self.given, name)
        return self.given

    @property
    def save_dir(self) -> str | None:
        return getattr(self.given, "save_dir", None)

    @property
    def log_dir(self) -> str | None:
        return getattr(self.given, "log_dir", None) or self.save_dir

    @property
    def version(self) -> str | int | None:
        return getattr(self.given, "version", None)

    def after_save_checkpoint(self, checkpoint_callback: Any) -> None:
        if self.process_index == 0 and hasattr(self.given, "after_save_checkpoint"):
            self.given.after_save_checkpoint(checkpoint_callback)

    def flush(self) -> None:
        if callable(getattr(self.given, "save", None)):
            self.given.save()

    def write_metrics(self, values: Mapping[str, Any], step: int | None, **options: Any) -> None:
        self._call("metrics", values, step=step, **options)

    def write_hyperparams(self, values: Mapping[str, Any]) -> None:
        self._call("hyperparams", values)

    def write_images(self, images: Mapping[str, Any], step: int | None, **options: Any) -> None:
        if not hasattr(self.given, "log_images"):
            raise self._cannot("log_images")
        self.start()
        self.given.log_images(images, step=step, **options)

    def finalize(self, status: str = "success") -> None:
        self._call("finalize", status)

    def close(self, status: str) -> None:
        self._call("close")

    def _call(self, purpose: str, *args: Any, **options: Any) -> None:
        self.start()
        for name in METHODS[purpose]:
            method = getattr(self.given, name, None)
            if callable(method):
                method(*args, **options)
                return


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
