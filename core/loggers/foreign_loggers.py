"""Loggers of other libraries' shapes: with Accelerate's methods of a tracker, or Lightning's of a logger."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import WrongTypeError
from ..hints.argument_checks import instead_of_class
from .base import Logger

__all__ = ["adapted"]

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
