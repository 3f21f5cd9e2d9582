"""The Profiler: measures named actions, and describes them at the end of a run; and finding one by its name."""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from ..discovery.classes import find_class
from ..discovery.loading import describe
from ..errors import BackendError, ConfigurationError, CoreError, WrongTypeError
from ..hints.argument_checks import check_path, instead_of_class, is_url

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Profiler(ABC):
    """Measures actions by name. A subclass defines :meth:`start`, :meth:`stop` and :meth:`summary`.

    Args:
        dirpath: The folder for the report; the Trainer's ``log_dir`` if only ``filename`` is given.
        filename: The start of the report's name; ``<filename>-<stage>-<rank>.txt``. Without both, the report is logged
            by Python's ``logging`` at level INFO, in process 0.
    """

    def __init__(self, dirpath: str | os.PathLike[str] | None = None, filename: str | None = None) -> None:
        check_path("dirpath", dirpath)
        self.dirpath = None if dirpath is None else os.path.expanduser(os.fspath(dirpath))
        self.filename = filename
        self._stage, self._rank = "run", 0
        self._log_dir: str | None = None

    @abstractmethod
    def start(self, action_name: str) -> None:
        """Begin to measure an action; actions may be nested."""

    @abstractmethod
    def stop(self, action_name: str) -> None:
        """End the action that :meth:`start` began."""

    @abstractmethod
    def summary(self) -> str:
        """The measurements as text."""

    def setup(self, stage: str, rank: int = 0, log_dir: str | None = None) -> None:
        """Called at the start of each run of a Trainer."""
        self._stage, self._rank, self._log_dir = stage, rank, log_dir

    def teardown(self) -> None:  # noqa: B027 - only some hold something
        """Called at the end of each run of a Trainer, after :meth:`describe`."""

    @contextmanager
    def profile(self, action_name: str) -> Iterator[str]:
        """A context that is measured as ``action_name``: ``with self.trainer.profiler.profile("augment"):``."""
        self.start(action_name)
        try:
            yield action_name
        finally:
            self.stop(action_name)

    def wrap(self, action_name: str, function: Callable[..., T]) -> Callable[..., T]:
        """``function``, measured."""

        def measured(*args: Any, **kwargs: Any) -> T:
            self.start(action_name)
            try:
                return function(*args, **kwargs)
            finally:
                self.stop(action_name)

        return measured

    def wrap_iterable(self, action_name: str, items: Iterable[T]) -> Iterator[T]:
        """``items``; the wait for each is measured."""
        iterator = iter(items)
        while True:
            self.start(action_name)
            try:
                item = next(iterator)
            except StopIteration:
                return
            finally:
                self.stop(action_name)
            yield item

    def describe(self) -> None:
        """Write the report, or log it."""
        text = self.summary()
        if not text:
            return
        path = self.path(".txt")
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        elif self._rank == 0:
            logger.info("%s", text)

    def path(self, suffix: str) -> Path | None:
        """The file for this run and process; ``None`` if no file was asked for."""
        folder = self.dirpath if self.dirpath is not None else self._log_dir if self.filename is not None else None
        if folder is None:
            return None
        if is_url(folder):
            raise ConfigurationError(
                f"{type(self).__name__}: {folder!r} is a URL, and the report is written to this machine. Set dirpath."
            )
        return Path(folder) / f"{self.filename or 'profile'}-{self._stage}-{self._rank}{suffix}"

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.__dict__)


class PassThroughProfiler(Profiler):
    """What ``trainer.profiler`` is if none was requested, so that ``trainer.profiler.profile(...)`` always works."""

    def start(self, action_name: str) -> None:
        """Do nothing."""

    def stop(self, action_name: str) -> None:
        """Do nothing."""

    def summary(self) -> str:
        """Nothing."""
        return ""


def find_profiler(given: Any) -> Profiler:
    """The profiler of a name, or the object itself; for ``None`` one that measures nothing.

    Raises:
        BackendError: The named profiler is broken, denied, incompatible or in conflict.
        UnknownNameError: There is no profiler of this name.
        WrongTypeError: It is neither a name nor a :class:`Profiler`.
    """
    if given is None:
        return PassThroughProfiler()
    if isinstance(given, Profiler):
        return given
    if not isinstance(given, str):
        raise WrongTypeError(
            f"profiler={given!r}: must be None, a name such as 'simple', or an object of a class in core.profilers."
            f"{instead_of_class(given)}"
        )
    named = find_class("profiler", given, "profiler")
    try:
        profiler: Profiler = named()
    except CoreError:
        raise
    except Exception as error:  # another distribution's class may raise anything
        raise BackendError(
            f"profiler={given!r}: {named.__qualname__}() raises {describe(error)}. If it needs arguments, pass an "
            f"object: profiler={named.__qualname__}(...)."
        ) from error
    return profiler
