"""The process that failed first: it shows its traceback, and the others end with one line each.

When a process fails, the others fail too, in a collective that cannot complete, and often print their tracebacks
earlier. So the first one leaves a note in the store of the run, and the others look for it before they print anything.
What the first one noted is what the output ends with.
"""

from __future__ import annotations

import atexit
import logging
import multiprocessing
import os
import re
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from types import TracebackType
from typing import Any, NoReturn

import torch.distributed as dist
from attrs import frozen
from torch.distributed.distributed_c10d import PrefixStore, Store

from ..errors import LaunchError
from .calls import is_user_frame
from .launchers.cause import (
    cause_of,
    end_with,
    first_line,
    is_interactive,
    is_plain,
    is_told,
    leave,
    print_error,
    show_traceback,
    summary,
)
from .launchers.exit_codes import (
    exit_code_of,
    exit_place,
    exit_status,
    explain,
    explanation,
    failing_exit,
    is_lost_peer,
    note_exits,
    print_interrupted,
)
from .stack_exchange import Stacks, Whereabouts, call_in, is_timeout
from .store.tcp_store import another_connection
from .time_limits import END_REQUEST_SECONDS, ENDED_SHOWN_SECONDS, ENDING_SECONDS, LONGEST_PAUSE_SECONDS, SHOWN_SECONDS

logger = logging.getLogger(__name__)


_OF_GLOO = re.compile(r"\[\S*/gloo/\S*\] | This is typically caused by .*")
"""What gloo adds to an error: its own file and line, and a guess."""

ENDED_EARLY = "has ended its script, or torn down, before the others"

Hook = Callable[[type[BaseException], BaseException, TracebackType | None], Any]


class _GoneStore:
    """In place of a store whose process has ended: every use raises LaunchError."""

    def __getattr__(self, name: str) -> Any:
        raise LaunchError("the store in which the processes meet is gone")


def _listens(store: Any) -> bool:
    """Whether a process listens where ``store`` is; true for a store that is not reached by an address."""
    if not hasattr(store, "host"):
        return True
    try:
        socket.create_connection((store.host, store.port), END_REQUEST_SECONDS).close()
    except OSError:
        return False
    return True


@frozen
class _First:
    """The process that failed first."""

    rank: int
    told: str
    """The last lines of the output."""
    code: int
    """Its exit code."""
    is_shown: bool
    """Whether its traceback has been written."""


class Failures:
    """How this process, and those that it lost, failed.

    It replaces ``sys.excepthook`` and ``sys.exit``: an exit code other than 0 is a failure too, and Python tells no one
    else of it.

    Args:
        store: The store of the run.
        rank: Of this process.
        world_size: The number of processes.
        check: Raises a LaunchError with an ``exit_code`` if a process that this one started has failed; or ``None``.
        below: The exception hook that torch has put its own around, if it has.
    """

    current: Failures | None = None
    """Of the newest run, also after its end: its error is shown when the interpreter ends."""

    def __init__(
        self,
        store: Store,
        rank: int,
        world_size: int,
        check: Callable[[], None] | None,
        below: Hook | None = None,
    ) -> None:
        self._store = store
        self._rank, self._world_size, self._check = rank, world_size, check
        self.stacks = Stacks(store, rank, world_size, self._end_different)
        """Tells where the processes are."""
        self._process = os.getpid()
        self._ending: threading.Thread | None = None
        """The thread that ends this process at once."""
        self._has_shown = False
        self._told: str | None = None
        """The failure that this process has announced."""
        self._hook: Hook = sys.excepthook
        self._is_plain = is_plain(sys.excepthook) if below is None else is_plain(below)

    def install(self) -> None:
        """Watch how this process ends, in place of the run before."""
        self.stacks.start()
        self._watch_end()

    def explain_early(self, error: LaunchError) -> None:
        """Show ``error`` like the failure of a run, although the processes have not joined yet.

        Each of them fails with the same: one shows it, the others name that one.
        """
        if error.exit_code is None and not is_lost_peer(error):
            explain(error, str(error), "")
        self._watch_end()

    def _watch_end(self) -> None:
        before, Failures.current = Failures.current, self
        if is_interactive() or multiprocessing.parent_process() is not None:
            return  # an exception does not end it; or it is a worker, whose end the supervising process shows
        if before is None:
            note_exits()
            atexit.register(_at_exit)
        if not isinstance(getattr(self._hook, "__self__", None), Failures):
            sys.excepthook = self._show_uncaught
        elif before is not None:
            self._hook, self._is_plain = before._hook, before._is_plain
            sys.excepthook = self._show_uncaught

    @staticmethod
    def below(hook: Hook) -> Hook:
        """What an earlier run has replaced by ``hook``; ``hook`` itself if that is not of a run."""
        owner = getattr(hook, "__self__", None)
        return owner._hook if isinstance(owner, Failures) else hook

    def announce(self, error: BaseException) -> None:
        """Tell the others that this process fails with ``error``, before they notice the lost connection."""
        self._explain(error)
        if is_lost_peer(error) and multiprocessing.parent_process() is not None:  # no hook looks for the cause there
            first = self._noted()
            if first is not None and ENDED_EARLY in first.told:
                explain(error, self._in_vain(first, error), "")
        elif not is_lost_peer(error):
            code = exit_code_of(error.code) if isinstance(error, SystemExit) else 1
            self._told = self._failed(cause_of(error))
            self._note(self._told, code)

    def _failed(self, cause: str) -> str:
        return f"rank {self._rank} of {self._world_size} failed: {cause}"

    def _explain(self, error: BaseException) -> None:
        """If ``error`` is the timeout of a collective, find out which processes did not join it; once."""
        if not is_lost_peer(error):
            return
        self.stacks.has_waited = True  # also if another one's time limit came first, which ends their connection
        if self.stacks.reason:
            explain(error, self.stacks.reason, "")
        elif is_timeout(error):
            explain(error, *self.stacks.report(f"timed out in {call_in(error)}"))

    def end_hung(self, what: str) -> NoReturn:
        """End this process at once, because it or another one hangs: say who, unless another process has said so.

        For a thread: the main thread may be blocked where no exception reaches it.
        """
        self._ending = threading.current_thread()
        own = Whereabouts.of_main_thread(self._rank, self.stacks.note())
        self._say_hung(*self.stacks.report(what, own))
        leave(1)

    def _end_different(self, what: str) -> NoReturn:
        """Like :meth:`end_hung`, for processes that are in different collectives."""
        self._ending = threading.current_thread()
        self._say_hung(what, "")
        leave(1)

    def _say_hung(self, cause: str, stacks: str) -> None:
        """Say that another process did not come, unless some other has said so."""
        told = self._failed(cause) if self._told is None else f"{self._told}\n  then {cause}"
        self._note(told, 1)
        first = self._find(END_REQUEST_SECONDS)
        if isinstance(first, _First) and first.rank != self._rank:
            self._end_after(first)
            return
        if stacks:
            print_error(stacks.rstrip())
        self._end_as_first(told)

    def _note(self, told: str, code: int) -> None:
        """Tell the others of this process's failure."""
        with self._notes() as notes:
            notes.set(f"failed/{self._rank}", f"{code} {told}")
            # Last: who finds this note reads the text.
            notes.compare_set("first", "", str(self._rank))

    @contextmanager
    def _notes(self) -> Iterator[Any]:
        """The store, by a separate connection: another thread may be waiting in the run's."""
        with suppress(dist.DistError, LaunchError):
            yield self._connect()

    def _connect(self) -> Any:
        served: Any = self._store
        while isinstance(served, PrefixStore):
            served = served.underlying_store
        if not _listens(served):
            return _GoneStore()
        usual = served.timeout
        # Connecting takes as long as the store's limit, half an hour, if the process that serves it ends just now.
        served.set_timeout(timedelta(seconds=END_REQUEST_SECONDS))
        try:
            store = another_connection(self._store)
        except dist.DistError:
            return _GoneStore()
        finally:
            served.set_timeout(usual)
        store.set_timeout(timedelta(seconds=END_REQUEST_SECONDS))
        return PrefixStore("failures", store)

    # -- this process's own failure ------------------------------------------------------------------------------

    def _show_uncaught(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if self._process == os.getpid() and isinstance(error, KeyboardInterrupt):
            logger.debug("rank %s was interrupted", self._rank, exc_info=error)
            print_interrupted(trace, f"rank {self._rank} of {self._world_size}: ")
            return
        if self._process != os.getpid() or not isinstance(error, Exception):
            self._hook(kind, error, trace)
            return
        self._explain(error)
        if (stacks := explanation(error)) is not None:
            logger.debug("rank %s waited in vain", self._rank, exc_info=error)
            self._has_shown = True
            self._say_hung(summary(error), stacks)
        elif is_lost_peer(error):
            logger.debug("rank %s lost another", self._rank, exc_info=error)
            self._show_lost(error)
        else:
            self._show_own(kind, error, trace)

    def _show_own(self, kind: type[BaseException], error: Exception, trace: TracebackType | None) -> None:
        """Show an error of this process's own, unless another one shows the same, as of a mistake in each script."""
        told = self._failed(cause_of(error))
        if self._is_said(told, 1):
            logger.debug("rank %s failed too", self._rank, exc_info=error)
            return
        if self._is_plain:
            show_traceback(error, self._rank)
        else:
            self._hook(kind, error, trace)
        self._end_as_first(told)

    def _is_said(self, told: str, code: int) -> bool:
        """Whether another process has failed before and shown it: then end with that, in a line if it differs."""
        self._note(told, code)
        first = self._find(SHOWN_SECONDS)
        if not isinstance(first, _First) or first.rank == self._rank or not first.is_shown:
            return False
        self._has_shown = True
        if first.told.partition("failed: ")[2] != told.partition("failed: ")[2]:
            print_error(told.replace("failed:", "failed too:", 1))
        self._end_after(first)
        return True

    def _end_as_first(self, told: str) -> None:
        self._shown()
        end_with(told)

    def _shown(self) -> None:
        self._has_shown = True
        with self._notes() as notes:
            notes.set(f"shown/{self._rank}", "")

    def let_end(self) -> None:
        """Wait for a thread that ends this process: one that is in the store when the interpreter ends aborts it."""
        if self._process == os.getpid() and self._ending is not None:
            self._ending.join(ENDING_SECONDS)

    def show_exit(self) -> None:
        """Say that this process ends by ``sys.exit``, if it does and has not said so."""
        if self._process == os.getpid() and not self._has_shown and failing_exit() is not None:
            told = self._failed("\n  at ".join(filter(None, (f"sys.exit({failing_exit()!r})", exit_place()))))
            if not self._is_said(told, exit_code_of(failing_exit())):
                self._end_as_first(told)

    def tell_of_early_end(self, seconds: float) -> None:
        """Tell the others, which may wait in a collective, that this process has ended without them.

        Args:
            seconds: How long it has waited for them to end too.
        """
        self._note(f"rank {self._rank} {ENDED_EARLY}, for which it waited {seconds:.0f} s", 1)
        self._shown()

    # -- the failure of another ----------------------------------------------------------------------------------

    def _show_lost(self, error: BaseException) -> NoReturn:
        """One line, and the cause of the failure of another; then exit with its exit code, if that is known."""
        self._has_shown = True
        # A process that is known to have ended says nothing more.
        has_ended = isinstance(error, LaunchError) and error.rank is not None
        first = self._find(ENDED_SHOWN_SECONDS if has_ended else SHOWN_SECONDS)
        if isinstance(first, LaunchError):
            end_with(str(first))
            raise SystemExit(exit_status(first.exit_code or 1))
        if first is None:
            text = first_line(_OF_GLOO.sub("", str(error)))
            print_error(f"{self._ends} it lost another process, which told no reason: {text}")
            raise SystemExit(1)
        if ENDED_EARLY in first.told:
            end_with(f"{self._ends} {self._in_vain(first, error)}")
        else:
            self._end_after(first)
        raise SystemExit(first.code)

    def _in_vain(self, first: _First, error: BaseException) -> str:
        return (
            f"{first.told}. Rank {self._rank} is in {_place_of(error)}, and waits for rank {first.rank} to make the "
            "same call. Make it in every process, not only in some of them."
        )

    @property
    def _ends(self) -> str:
        return f"rank {self._rank} of {self._world_size} ends because"

    def _end_after(self, first: _First) -> None:
        """One line, and the cause of the failure of another."""
        if is_told():
            print_error(f"{self._ends} rank {first.rank} failed")
            end_with(first.told)
        else:
            end_with(f"{self._ends} {first.told}")

    def _find(self, seconds: float) -> _First | LaunchError | None:
        """The process that failed first; when it has shown that itself within some seconds.

        A LaunchError if it died without a word, and this process started it.
        """
        found: _First | None = None
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            child = self._failed_child()
            found = self._noted() or found
            if found is not None and (found.is_shown or found.rank == self._rank):
                return found
            if child is not None and found is None:
                self._tell(child)
                return child
            time.sleep(LONGEST_PAUSE_SECONDS)
        return found

    def _noted(self) -> _First | None:
        """The store's entry about the process that failed first."""
        with self._notes() as notes:
            if notes.check(["first"]):
                rank = int(notes.get("first"))
                code, _, told = notes.get(f"failed/{rank}").decode(errors="replace").partition(" ")
                return _First(rank, told, int(code), bool(notes.check([f"shown/{rank}"])))
        return None

    def _tell(self, child: LaunchError) -> None:
        """Tell the others of a process that died without a word."""
        with self._notes() as notes:
            notes.set(f"failed/{child.rank}", f"{exit_status(child.exit_code or 1)} {child}")
            notes.set(f"shown/{child.rank}", "")
            # Last, as in _note.
            notes.compare_set("first", "", str(child.rank))

    def _failed_child(self) -> LaunchError | None:
        if self._check is not None:
            try:
                self._check()
            except LaunchError as error:
                return error
        return None


def _place_of(error: BaseException) -> str:
    """The user's line that raised ``error``, and what it calls there."""
    place = "a collective"
    for frame, line in traceback.walk_tb(error.__traceback__):
        if is_user_frame(frame) and not str(frame.f_globals.get("__name__", "")).startswith("torch."):
            place = f"line {line} of {frame.f_code.co_filename}"
    return place


def _at_exit() -> None:
    if Failures.current is not None:
        Failures.current.let_end()
        Failures.current.show_exit()
