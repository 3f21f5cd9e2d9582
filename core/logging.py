"""Messages and functions of a script of several processes that are for process 0 only.

A logger is made at the top of a module, often before there is a Runtime. So it finds out which process this is when a
message is logged: from the last Runtime that was not torn down (:mod:`core.utilities.live_runtimes`), otherwise from
the variables that a launcher has set.
"""

from __future__ import annotations

import functools
import logging
import sys
import warnings
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, ParamSpec, TypeVar

from .discovery.ranks import launched_ranks
from .errors import ConfigurationError, WrongTypeError, nearest, quoted
from .utilities.live_runtimes import last_run

__all__ = [
    "MultiProcessAdapter",
    "follow_variable",
    "get_logger",
    "rank_zero_info",
    "rank_zero_only",
    "rank_zero_warn",
    "show",
]

P = ParamSpec("P")
T = TypeVar("T")

VARIABLE = "CORE_LOG"
LEVELS = ("debug", "info", "warning", "error")


class MultiProcessAdapter(logging.LoggerAdapter[logging.Logger]):
    """A logger whose methods take two more arguments.

    * ``main_process_only``: whether only process 0 logs; true by default.
    * ``in_order``: whether processes log one after another, if ``main_process_only=False``; every process calls it.
    """

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log ``msg`` in process 0, or in all processes; see the class.

        Raises:
            ConfigurationError: ``in_order`` with several processes, before there is a Runtime.
        """
        main_process_only = kwargs.pop("main_process_only", True)
        in_order = kwargs.pop("in_order", False)
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1
        if main_process_only:
            if self.isEnabledFor(level) and _ranks()[0] == 0:
                super().log(level, msg, *args, **kwargs)
            return
        run, (rank, world_size) = last_run(), _ranks() if in_order else (0, 1)
        if world_size == 1:
            super().log(level, msg, *args, **kwargs)
        elif run is None:
            raise ConfigurationError(
                "in_order=True: the processes wait for each other, which needs a Runtime. Create it before, or omit "
                "in_order."
            )
        else:
            for turn in range(world_size):
                if turn == rank:
                    super().log(level, msg, *args, **kwargs)
                run.barrier()

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Add the adapter's ``extra`` to that of the call."""
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs

    def warning_once(self, msg: object, *args: object, **kwargs: Any) -> None:
        """Log a warning, unless this logger has logged the same one before."""
        key = (str(msg), *map(str, args), kwargs.get("main_process_only", True))
        if key not in self._warned:
            self._warned.add(key)
            self.warning(msg, *args, **{**kwargs, "stacklevel": kwargs.get("stacklevel", 1) + 1})

    def __init__(self, logger: logging.Logger) -> None:
        super().__init__(logger, {})
        self._warned: set[tuple[object, ...]] = set()


def get_logger(name: str, log_level: str | int | None = None) -> MultiProcessAdapter:
    """The logger ``name``, whose messages only process 0 logs unless ``main_process_only=False``.

    It may be made and used before there is a Runtime.

    Args:
        name: As for :func:`logging.getLogger`; usually ``__name__``.
        log_level: The level of this logger and of the root logger, such as ``"INFO"``; unchanged unless given.

    Raises:
        ConfigurationError: There is no such level.
    """
    logger = logging.getLogger(name)
    if log_level is not None:
        level = log_level.upper() if isinstance(log_level, str) else log_level
        try:
            logger.setLevel(level)
        except ValueError as error:
            names = ", ".join(map(repr, logging.getLevelNamesMapping()))
            raise ConfigurationError(f"log_level={log_level!r}: there is no such level. Valid: {names}.") from error
        logging.getLogger().setLevel(level)
    return MultiProcessAdapter(logger)


def rank_zero_only(function: Callable[P, T], default: Any = None) -> Callable[P, T]:
    """A decorator: only process 0 runs the function, all others return ``default`` at once.

    ::

        @rank_zero_only
        def write_report(path):
            ...

    Which process this is, is found out at each call, so it may be used before there is a Trainer or Runtime. A
    collective in such a function would wait for processes that do not call it.

    Args:
        function: The function or method.
        default: What the other processes get.

    Raises:
        WrongTypeError: ``function`` cannot be called.
    """
    if not callable(function):
        raise WrongTypeError(f"rank_zero_only: got {function!r}, which is not a function. Write it above one.")

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Any:
        return function(*args, **kwargs) if _ranks()[0] == 0 else default

    return call


def show(logger: logging.Logger, text: str, end: str = "\n") -> None:
    """Log ``text`` at INFO if ``logger`` shows that level, otherwise write it to the standard error stream.

    Args:
        logger: Where it belongs.
        text: What to show.
        end: What follows it on the standard error stream.
    """
    if logger.isEnabledFor(logging.INFO) and logger.hasHandlers():
        logger.info("%s", text)
    else:
        sys.stderr.write(text + end)


@rank_zero_only
def rank_zero_info(message: object, *args: object) -> None:
    """Show a message in process 0: by the log where that shows INFO, otherwise on the standard error stream.

    Args:
        message: The message, or its format.
        *args: What its format takes.
    """
    show(logging.getLogger("torch_hal"), str(message) % args if args else str(message))


@rank_zero_only
def rank_zero_warn(message: str | Warning, stacklevel: int = 4, **kwargs: Any) -> None:
    """Call :func:`warnings.warn` in process 0.

    Args:
        message: The message.
        stacklevel: Whose line is named: 4 is the caller's, 5 that of its caller.
        **kwargs: Further arguments, such as ``category``.
    """
    warnings.warn(message, stacklevel=stacklevel - 1, **kwargs)


def _ranks() -> tuple[int, int]:
    """The number of this process and how many there are, from the last Runtime or else from the launcher."""
    run = last_run()
    return (run.process_index, run.num_processes) if run is not None else launched_ranks()


def follow_variable(environ: Mapping[str, str]) -> None:
    """Show torch-hal's own messages from the level in ``CORE_LOG`` on, on stderr unless handlers are set up already.

    Args:
        environ: The environment variables.

    Raises:
        ConfigurationError: There is no such level.
    """
    given = environ.get(VARIABLE, "")
    if not given:
        return
    if given.lower() not in LEVELS:
        raise ConfigurationError(
            f"environment variable {VARIABLE}={given!r}: there is no such level.{nearest(given.lower(), LEVELS)} "
            f"Valid: {quoted(LEVELS)}."
        )
    own = logging.getLogger("torch_hal")
    own.setLevel(given.upper())
    if not own.hasHandlers():
        rank, world_size = launched_ranks(environ)
        prefix = f"[rank {rank}] " if world_size > 1 else ""
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter(f"{prefix}%(levelname)s %(name)s: %(message)s"))
        own.addHandler(handler)
