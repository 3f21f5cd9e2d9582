"""The process that is to blame for the end of a run, and the exit code of the others."""

from __future__ import annotations

import re
import sys
import time
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn

import torch.distributed as dist

from ...errors import LaunchError
from .cause import end_with, format_place, innermost, is_interactive, print_error

_LOST = re.compile(r"gloo/|[Cc]onnection (closed|reset|refused)|[Bb]roken pipe|[Ss]ocket")


def exit_status(code: int) -> int:
    """The exit code of a process that ends because another did with ``code``; ``128 + n`` if by signal n."""
    return code if code >= 0 else 128 - code


class EndedBySignal(SystemExit):
    """All processes of the run have agreed to end, because one of them received a signal."""

    agreed: int | None = None

    def __init__(self, code: int) -> None:
        super().__init__(code)
        EndedBySignal.agreed = code


def agreed_exit_code() -> int | None:
    """The exit code with which all processes of the run end by agreement; ``None`` if they have not agreed."""
    return EndedBySignal.agreed


class _Exit:
    """What ``sys.exit`` was called with.

    There is no other way to learn it in a process that the user has started. Python handles SystemExit before it calls
    ``sys.excepthook``, and has dropped the exception when handlers at exit run. Only a launcher sees exit codes.
    """

    status: Any = None
    place = ""
    original: Callable[..., NoReturn] = sys.exit

    @classmethod
    def call(cls, status: Any = None, /) -> NoReturn:
        """Exit the interpreter by raising SystemExit(status)."""
        cls.status = status
        frames = [
            (frame.f_code.co_filename, line, frame.f_code.co_name)
            for frame, line in traceback.walk_stack(sys._getframe(1))
        ]
        cls.place = innermost(reversed(frames))
        cls.original(status)


def note_exits() -> None:
    """Replace ``sys.exit``, so that :func:`failing_exit` knows what it was called with."""
    if sys.exit != _Exit.call:
        _Exit.original, sys.exit = sys.exit, _Exit.call


def failing_exit() -> Any:
    """The argument of ``sys.exit``; ``None`` if it was not called, or called with 0."""
    return None if _Exit.status == 0 else _Exit.status


def exit_place() -> str:
    """Where the user's code has called ``sys.exit``."""
    return _Exit.place


def exit_code_of(status: Any) -> int:
    """The exit code of ``sys.exit(status)``; 1 for a message."""
    return 0 if status is None else status & 0xFF if isinstance(status, int) else 1


def ended_by_failure() -> bool:
    """Whether the interpreter is exiting because of an uncaught exception, or of a failing exit code."""
    by_exception = getattr(sys, "last_exc", None) is not None or getattr(sys, "last_value", None) is not None
    return by_exception or failing_exit() is not None


def note_failure(error: BaseException) -> None:
    """Record when ``error`` made this process fail.

    Teardown closes connections, which makes other processes fail, perhaps before this one has finished its teardown.
    """
    if not hasattr(error, "_core_failed_at"):
        error._core_failed_at = time.monotonic()  # type: ignore[attr-defined]


def failed_at(error: BaseException) -> float:
    """When ``error``, or an error that caused it, made this process fail: seconds on the machine's monotonic clock."""
    moments = [time.monotonic()]
    cause: BaseException | None = error
    seen: set[int] = set()
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        moments.append(getattr(cause, "_core_failed_at", moments[0]))
        cause = cause.__cause__ or cause.__context__
    return min(moments)


def explain(error: BaseException, text: str, stacks: str) -> None:
    """Say of ``error`` what it means: ``text`` instead of its own summary, and where the other processes are."""
    error._core_explanation = text, stacks  # type: ignore[attr-defined]
    error.add_note(f"{text}\n{stacks}")


def explanation(error: BaseException) -> str | None:
    """Where the other processes are, if :func:`explain` was told."""
    return None if (told := getattr(error, "_core_explanation", None)) is None else str(told[1])


def is_lost_peer(error: BaseException) -> bool:
    """Whether ``error`` is only the consequence of another process's failure, as far as is known."""
    if explanation(error) is not None:
        return False
    if isinstance(error, LaunchError):
        return error.exit_code is not None or isinstance(error.__cause__, dist.DistError)
    return isinstance(error, dist.DistError) or (type(error) is RuntimeError and bool(_LOST.search(str(error))))


def print_interrupted(trace: TracebackType | None, who: str = "") -> None:
    """Say in one line that this process ends by Ctrl-C, and where in the script it was."""
    place = ""
    for frame, line in traceback.walk_tb(trace):
        if frame.f_globals.get("__name__") == "__main__":
            place = f" at {frame.f_code.co_filename}:{line}"
    print_error(f"{who}interrupted by SIGINT{place}")


def show_launch_errors() -> None:
    """Make an uncaught LaunchError of a failed process show that process first, and end this one with its exit code.

    And an uncaught KeyboardInterrupt a line, not a traceback of where this process waited.
    """
    if not is_interactive() and not isinstance(sys.excepthook, _LaunchErrors):
        sys.excepthook = _LaunchErrors(sys.excepthook)


class _LaunchErrors:
    """An exception hook of a process that supervises others."""

    def __init__(self, below: Callable[[type[BaseException], BaseException, TracebackType | None], Any]) -> None:
        self.below = below

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, KeyboardInterrupt):
            print_interrupted(trace)
            return
        if not isinstance(error, LaunchError) or error.exit_code is None:
            self.below(kind, error, trace)
            return
        print_error(f"The processes were started here:\n{format_place(trace)}")
        end_with(str(error))
        raise SystemExit(exit_status(error.exit_code))
