"""The cause of a failure: what the output of a run ends with, and how it gets to the process that ends last.

People read the last lines, and many a cluster keeps only them. The process that fails shows its traceback. The cause
follows when all processes have ended: which rank, what, where in the user's code, what to do. So a process that another
one has started tells its cause to that one, which writes it last.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import re
import sys
import sysconfig
import time
import traceback
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import groupby
from traceback import StackSummary, TracebackException
from types import TracebackType
from typing import Any, NoReturn

import torch

from ... import errors
from ...hints.remedies import add_remedy

CAUSE = "CORE_CAUSE"
"""The environment variable with the path to which a process writes its cause, for the one that has started it."""
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
"""torchrun's variable with such a path; its agent shows the file's content."""

INNERMOST = 4
"""Of so many frames below the user's last one, the calls are shown; of none for an error that is raised on purpose."""
LONGEST = 300
"""Characters of a line of a message."""

_OURS = tuple(os.path.join(os.path.dirname(module.__file__), "") for module in (errors, torch) if module.__file__)
_PYTHONS = os.path.join(sysconfig.get_path("stdlib"), "")
_INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]")
_PLUGIN = re.compile(r"[/\\]torch_hal_\w+[/\\]")
_IN_WORKER = re.compile(r"Caught \w+ in ([\w ]+)\.\nOriginal Traceback \(most recent call last\):\n")
"""How torch begins the message of an error that a worker of a loader has raised; the worker's traceback follows."""
_ENTRY = re.compile(r'^ *File "(.+)", line (\d+), in (.+)$', re.MULTILINE)

logger = logging.getLogger(__name__)

_tellers: list[Callable[[str], object]] = []
"""Take the cause of this process's end to who writes it last; none if this process does so itself."""
_writers: list[Callable[[], object]] = []
"""Write what these have been told, in a process that ends last."""


# -- what it says ----------------------------------------------------------------------------------------------------


def cause_of(error: BaseException) -> str:
    """What happened, where in the user's code, and what to do, if that is known; each a line."""
    if (told := getattr(error, "_core_explanation", None)) is not None:
        return str(told[0])
    add_remedy(error)
    place, notes = _place(error), [first_line(note) for note in getattr(error, "__notes__", ())]
    return "\n  ".join(filter(None, [summary(error), f"at {place}" if place else "", *notes]))


def summary(error: BaseException) -> str:
    """``ValueError: what it says``, in one line."""
    if isinstance(error, SystemExit):
        return f"sys.exit({error.code!r})"
    if (told := getattr(error, "_core_explanation", None)) is not None:
        return first_line(str(told[0]))
    text = str(error)
    if _IN_WORKER.match(text):  # the worker's traceback ends with the error
        entries = re.split(r"^(?=[^\s])", text.rstrip(), flags=re.MULTILINE)
        return first_line(entries[-1])
    # The remedy is at the end of a message of torch-hal, which is not longer than it has to be.
    longest = LONGEST if not isinstance(error, errors.CoreError) else 4 * LONGEST
    return f"{type(error).__name__}: {first_line(text, longest)}".removesuffix(": ")


def first_line(text: str, longest: int = LONGEST) -> str:
    """The first line of ``text``, cut to so many characters."""
    line = next(iter(text.strip().splitlines()), "")
    return line if len(line) <= longest else line[: longest - 2] + " …"


def _place(error: BaseException) -> str:
    """The user's innermost line in ``error``'s traceback, and the function that it is in; empty if there is none."""
    if worker := _IN_WORKER.match(str(error)):
        found = [(file, int(line), name) for file, line, name in _ENTRY.findall(str(error))]
        return f"{innermost(found)}, in a {worker[1]}".removeprefix(", ")
    return innermost((frame.filename, frame.lineno, frame.name) for frame in traceback.extract_tb(error.__traceback__))


def innermost(calls: Iterable[tuple[str, int | None, str]]) -> str:
    """The innermost line of the user's code, as ``train.py:12 in work``; empty if there is none.

    Args:
        calls: File, line and function of each frame, the innermost last.
    """
    calls = [call for call in calls if _whose(call[0])]
    own = [call for call in calls if _whose(call[0]) == "own"] or calls
    if not own:
        return ""
    file, line, name = own[-1]
    return f"{_short(file)}:{line}" + ("" if name == "<module>" else f" in {name}")


def _whose(file: str) -> str:
    """``own`` for the user's code, ``other`` for that of other libraries; empty for torch-hal, torch and Python."""
    if _INSTALLED.search(file):
        return "" if file.startswith(_OURS) or _PLUGIN.search(file) else "other"
    is_ours = file.startswith((*_OURS, _PYTHONS, "<frozen ")) or _PLUGIN.search(file)
    return "" if is_ours else "own"


def _short(file: str) -> str:
    """``file`` relative to the current directory, if it is in there."""
    with suppress(OSError, ValueError):
        inside = os.path.relpath(file)
        return file if inside.startswith("..") else inside
    return file


# -- the traceback ---------------------------------------------------------------------------------------------------


class _Shown(StackSummary):
    """A stack without the frames of torch-hal, torch and Python, except the last ones."""

    innermost: int

    @classmethod
    def of(cls, stack: StackSummary, innermost: int) -> _Shown:
        shown = cls(stack)
        shown.innermost = innermost
        return shown

    def format(self, **options: Any) -> list[str]:
        groups = [(whose, list(frames)) for whose, frames in groupby(self, lambda frame: bool(_whose(frame.filename)))]
        lines: list[str] = []
        for is_users, frames in groups:
            is_last = frames[-1] is self[-1]
            first_shown = 0 if is_users else max(0, len(frames) - (self.innermost if is_last else 0))
            if first_shown:
                lines.append(
                    f"  ... {first_shown} frame(s) of torch-hal, torch and Python; CORE_LOG=debug shows them\n"
                )
            lines += StackSummary.from_list(frames[first_shown:]).format(**options)
        return lines


def format_error(error: BaseException) -> str:
    """The lines of ``traceback.format_exception``, without torch-hal's, torch's and Python's inner frames."""
    shown = TracebackException.from_exception(error)
    if not logger.isEnabledFor(logging.DEBUG):
        for each in _chain(shown):
            each.stack = _Shown.of(each.stack, 0 if isinstance(error, errors.CoreError) else INNERMOST)
    return "".join(shown.format())


def format_place(trace: TracebackType | None) -> str:
    """Where in the user's code ``trace`` was, as lines of a traceback."""
    return "".join(_Shown.of(traceback.extract_tb(trace), 0).format()).rstrip()


def _chain(shown: TracebackException | None) -> Iterator[TracebackException]:
    if shown is not None:
        yield shown
        yield from _chain(shown.__cause__)
        yield from _chain(shown.__context__)


def show_traceback(error: BaseException, rank: int) -> None:
    """Write ``error`` with its traceback to standard error, with the rank in front of each line, as torch does."""
    print_error(ranked(format_error(error), rank))


def ranked(text: str, rank: int) -> str:
    """``text`` with the rank in front of each line."""
    return "\n".join(f"[rank{rank}]: {line}" for line in text.rstrip().splitlines())


def is_plain(hook: object) -> bool:
    """Whether an exception hook is Python's own. Another hook may show tracebacks in its own way."""
    while (below := getattr(hook, "below", None)) is not None:
        hook = below
    return hook is sys.__excepthook__


def is_interactive() -> bool:
    """Whether an uncaught exception does not end this process."""
    return hasattr(sys, "ps1") or bool(sys.flags.interactive)


def print_error(line: str) -> None:
    """Write a line to standard error, in one piece."""
    if sys.stderr is not None:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


# -- who writes it last ----------------------------------------------------------------------------------------------


def end_with(cause: str) -> None:
    """Make ``cause`` the last that the run writes."""
    for tell in _tellers:
        tell(cause)
    if not _tellers:
        print_error(cause)


def is_told() -> bool:
    """Whether another process, or a later moment of this one, writes the cause last."""
    return bool(_tellers)


def tell_also(tell: Callable[[str], object], write: Callable[[], object] | None = None) -> None:
    """Make :func:`end_with` call ``tell``, which sees to it that the cause is written last.

    Args:
        tell: Takes the cause.
        write: Writes it, if this process is the one that ends last; :func:`leave` calls it.
    """
    _tellers.append(tell)
    if write is not None:
        _writers.append(write)


def tell_only(tell: Callable[[str], object]) -> None:
    """Like :func:`tell_also`, in place of what the process has inherited that forked this one."""
    _tellers[:] = [tell]
    _writers.clear()


def leave(code: int) -> NoReturn:
    """End this process at once, without the interpreter's exit functions: one of them would write the cause."""
    for write in _writers:
        write()
    sys.stdout.flush()  # os._exit does not
    os._exit(code)


def attach_cause(path: str, environ: Mapping[str, str]) -> None:
    """Tell the process that has started this one of the cause, also of an error before the run. Call it early.

    Args:
        path: What the variable of torch-hal's launcher said. It is not for what this process starts.
        environ: The environment variables of this process, without ranks that belong to another one.
    """
    files = [each for each in (path, environ.get(ERROR_FILE, "")) if each]
    rank, world_size = environ.get("RANK", ""), environ.get("WORLD_SIZE", "")
    if not files or not rank.isdecimal() or not world_size.isdecimal() or multiprocessing.parent_process() is not None:
        return
    for each in files:
        tell_also(partial(_write, each))
    if sys.excepthook is sys.__excepthook__ and not is_interactive():
        sys.excepthook = _BeforeTheRun(int(rank), int(world_size), environ.get(ERROR_FILE, ""))


class _BeforeTheRun:
    """The exception hook of a started process until it joins the run."""

    def __init__(self, rank: int, world_size: int, error_file: str) -> None:
        self._rank, self._world_size, self._error_file = rank, world_size, error_file
        self.below = sys.excepthook

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not isinstance(error, Exception):
            self.below(kind, error, trace)
            return
        cause = cause_of(error)
        if _is_new_here(cause, self._error_file):
            show_traceback(error, self._rank)
        end_with(f"rank {self._rank} of {self._world_size} failed: {cause}")


def _is_new_here(cause: str, error_file: str) -> bool:
    """Whether no other process that torchrun's agent has started on this machine has shown this error.

    A mistake in a script fails in all of them at once, and their tracebacks would hide the cause.
    """
    if not error_file:
        return True
    # The agent has made a folder for each attempt, and in it one for each process.
    mark = os.path.join(os.path.dirname(os.path.dirname(error_file)), f"shown-{zlib.crc32(cause.encode())}")
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    except OSError:  # an agent without such folders
        return True
    return True


def _write(path: str, cause: str) -> None:
    """In the form that torchrun's agent reads, unless the script's own ``@record`` has written there."""
    extra = {"py_callstack": cause, "timestamp": str(int(time.time()))}
    with suppress(OSError):
        if not (os.path.isfile(path) and os.path.getsize(path)):
            with open(path, "w", encoding="utf-8") as file:
                file.write(json.dumps({"message": {"message": cause, "extraInfo": extra}}) + "\n")


def causes_in(text: str) -> list[str]:
    """The causes that processes have written to a pipe or a file, each once."""
    found: dict[str, None] = {}
    for line in text.splitlines():
        with suppress(ValueError, KeyError, TypeError):
            found[str(json.loads(line)["message"]["message"])] = None
    return list(found)
