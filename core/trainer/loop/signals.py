"""Signals to any process of a fit: all agree on a batch after which they save, and go on or end.

A thread in each process notices the signal, in its own process or by a note in the store of the run. It tells how many
batches the process has trained on; process 0 picks the next that all can reach. So training needs no collective and no
request to the store: a batch costs one addition and one comparison.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from ...data.workers import Handled
from ...errors import ConfigurationError, LaunchError, WrongTypeError, nearest, quoted
from ...strategies.launchers.cause import innermost, is_interactive
from ...strategies.launchers.exit_codes import EndedBySignal
from ...strategies.store.notes import Board
from ...strategies.time_limits import (
    AGREE_SECONDS,
    ALONE_SECONDS,
    LATE_SIGNAL_SECONDS,
    REQUEST_SECONDS,
    REQUEUE_SECONDS,
    SAME_SIGNAL_SECONDS,
    SIGNAL_POLL_SECONDS,
    SIGNAL_TOLD_SECONDS,
)

DEFAULT_SIGNALS = {"SIGTERM": "stop", "SIGINT": "stop", "SIGUSR1": "save"}
ACTIONS = ("stop", "save", "requeue")

NEVER = 10**18

logger = logging.getLogger(__name__)


def read_signals(given: Mapping[str, str] | None) -> dict[str, str]:
    """The argument ``signals`` of a Trainer, checked.

    Raises:
        ConfigurationError: There is no such signal or action, or the signal cannot be handled.
        WrongTypeError: It is no mapping.
    """
    if given is None:
        return {name: action for name, action in DEFAULT_SIGNALS.items() if hasattr(signal, name)}
    if not isinstance(given, Mapping):
        raise WrongTypeError(f"signals={given!r}: must be a dict, such as {DEFAULT_SIGNALS!r}; {{}} for none.")
    names = sorted({number.name for number in signal.Signals} - {"SIGKILL", "SIGSTOP"})
    for name, action in given.items():
        if name not in names:
            remedy = (
                f" The signal comes first: {{{action!r}: {name!r}}}." if action in names else nearest(str(name), names)
            )
            raise ConfigurationError(f"signals: {name!r} cannot be handled.{remedy}")
        if action not in ACTIONS:
            raise ConfigurationError(f"signals: {name!r}: {action!r} is no action. Valid: {quoted(ACTIONS)}.")
    return dict(given)


class HeldBack(Handled):
    """A context in which signals that only ask for a checkpoint wait for :class:`Signals`: nothing is there yet.

    The system's default is to end the process. It holds for signals that nothing else handles, in the main thread.

    Args:
        actions: As for :class:`Signals`.
    """

    def __init__(self, actions: Mapping[str, str]) -> None:
        super().__init__(signal.SIG_DFL)
        self._numbers = [int(signal.Signals[name]) for name, action in actions.items() if action == "save"]
        self.received: list[int] = []

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in self._numbers:
                if signal.getsignal(number) is signal.SIG_DFL:
                    signal.signal(number, self)
        return self

    def __exit__(self, *_: object) -> None:
        for number in self._numbers:
            if signal.getsignal(number) is self:
                signal.signal(number, signal.SIG_DFL)

    def __call__(self, number: int, frame: object) -> None:
        """Note a signal."""
        self.received.append(number)

    def give_up(self) -> None:
        """Behave like without the context: a signal that waits ends this process."""
        self.__exit__()
        for number in self.received:
            os.kill(os.getpid(), number)


class _OnceMore(Handled):
    """A handler for the signal that has ended a fit: it ignores one repetition, and restores the handler before it.

    A terminal sends Ctrl-C to all processes of a run, and the launcher passes it on as well. If that comes late, it
    would interrupt a checkpoint that is being written.
    """

    def __init__(self, before: Any) -> None:
        super().__init__(before)
        self._begin = time.monotonic()

    def __call__(self, number: int, frame: object) -> None:
        """Handle it."""
        signal.signal(number, self.before)
        if time.monotonic() - self._begin > LATE_SIGNAL_SECONDS:
            os.kill(os.getpid(), number)


class Signals:
    """Handles signals while a fit runs, as a context; :meth:`after_batch` acts on them.

    Only signals that nothing else handles, and only in the main thread. Where several processes train without a store,
    nothing is handled.

    Args:
        actions: By the signal's name, ``"stop"``, ``"save"`` or ``"requeue"``.
        board: Of the run; ``None`` for one process.
        rank: Of this process.
        world_size: The number of processes.
        save: Writes a checkpoint; all processes call it. Returns its path, or an empty string if none is wanted.
        requeue: The command of the scheduler for ``"requeue"``, which process 0 runs once; empty if there is none.

    Raises:
        ConfigurationError: ``"requeue"`` is asked for without such a command.
    """

    def __init__(
        self,
        actions: Mapping[str, str],
        board: Board | None,
        rank: int,
        world_size: int,
        save: Callable[[], str],
        requeue: Sequence[str] = (),
    ) -> None:
        if "requeue" in actions.values() and not requeue:
            raise ConfigurationError(
                "signals: 'requeue' needs a job of SLURM, and this process is in none (SLURM_JOB_ID is not set). "
                "Set 'stop', or submit the script by sbatch."
            )
        self._requeue = list(requeue)
        self._actions = {int(signal.Signals[name]): action for name, action in actions.items()}
        self._rank, self._world_size, self._save = rank, world_size, save
        self._is_active = world_size == 1 or board is not None
        self._shared = board if world_size > 1 else None
        self._board: Board | None = None
        self._place = ""
        self._handlers: dict[int, Any] = {}
        self._last: dict[int, float] = {}
        self._number = 0
        """How many signals were acted on."""
        self._received: list[int] = []
        self.is_due = False
        """Whether a signal is known to this process, so that :meth:`after_batch` has something to do."""
        self._is_acting = False
        self._due_since: float | None = time.monotonic()
        """When a signal became known; ``None`` if no one has to be told that it waits."""
        self._watches: list[Callable[[], None]] | None = None
        self._batches = 0
        self._target = NEVER
        self._signal = 0
        self._agreed = threading.Event()
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        self._pipe = (-1, -1)
        self._wakeup = -1

    def has_received(self, name: str) -> bool:
        """Whether this process has received the signal, or acts on it as another one has."""
        number = int(getattr(signal, name, -1))
        return number in self._last or number == self._signal

    # -- life ----------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            self._is_active = False
            return self
        held = [found for found in map(signal.getsignal, self._actions) if isinstance(found, HeldBack)]
        if not self._is_active:
            for each in held:
                each.give_up()
            return self
        for number in self._actions:
            before = signal.getsignal(number)
            if isinstance(before, _OnceMore):  # of an earlier fit
                before = before.before
            is_interrupt = before is signal.default_int_handler and not is_interactive()
            if before is signal.SIG_DFL or is_interrupt or isinstance(before, HeldBack):
                self._handlers[number] = before
        if self._shared is not None:
            count = self._shared.meetings["signals"] = self._shared.meetings.get("signals", 0) + 1
            self._board, self._place = self._shared.with_own_connection(), f"signals/{count}"
        # The system writes to this pipe at once. Python's own handlers wait until a blocked collective returns.
        self._pipe = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC) if hasattr(os, "pipe2") else os.pipe()
        for end in self._pipe:
            os.set_blocking(end, False)
        self._wakeup = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._watch, name="core-signals", daemon=True)
        self._thread.start()
        for number, handler in self._handlers.items():
            signal.signal(number, Handled(handler))
        for number in {number for each in held for number in each.received}:
            os.write(self._pipe[1], bytes([number]))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._is_active:
            return
        for number, handler in self._handlers.items():
            has_ended_it = isinstance(error, EndedBySignal) and number == self._signal and self._world_size > 1
            signal.signal(number, _OnceMore(handler) if has_ended_it else handler)
        signal.set_wakeup_fd(self._wakeup)
        self._done.set()
        os.write(self._pipe[1], b"\0")
        if self._thread is not None:
            self._thread.join(REQUEST_SECONDS)
        # If the thread still waits for the store, that is out of reach, and this process would wait too.
        is_reachable = self._thread is None or not self._thread.is_alive()
        if self._board is not None and is_reachable and not isinstance(error, EndedBySignal):
            with suppress(LaunchError):
                self._board.set_once(f"{self._place}/{self._number}/{self._rank}", str(self._batches).encode())
                if self._rank == 0:
                    self._board.set_once(f"{self._place}/{self._number}/target", str(NEVER).encode())
        for end in self._pipe:
            os.close(end)

    # -- the thread ----------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        try:
            while not self._done.is_set():
                self._wait()
                self._tell_of_waiting()
                if self._received and self._board is None and not self.is_due:
                    self._signal = self._first()
                    self._received.remove(self._signal)
                    self._target, self.is_due = 0, True
                    self._agreed.set()
                elif self._board is not None and not self.is_due:
                    self._look(self._board)
                elif self._board is not None and not self._is_acting:
                    self._look_for_others(self._board)
        except LaunchError as error:  # the main thread fails too, with more to say
            logger.debug("rank %s looks for its own signals only: %s", self._rank, error)
            self._end_alone()

    def _wait(self) -> None:
        """Wait for signals for a while, and note them."""
        select.select([self._pipe[0]], [], [], SIGNAL_POLL_SECONDS)
        with suppress(BlockingIOError):
            for number in os.read(self._pipe[0], 64):
                self._note(number)

    def _tell_of_waiting(self) -> None:
        """Say once, if the batch takes long after which a signal is acted on, where this process is."""
        if not self.is_due or self._is_acting:
            self._due_since = time.monotonic()
        elif self._due_since is not None and time.monotonic() - self._due_since > SIGNAL_TOLD_SECONDS:
            self._due_since = None
            frame = sys._current_frames().get(threading.main_thread().ident or 0)
            calls = [] if frame is None else traceback.extract_stack(frame)
            place = innermost((call.filename, call.lineno, call.name) for call in calls)
            sys.stderr.write(
                f"rank {self._rank}: {signal.Signals(self._signal).name} waits for the end of a batch, for more than "
                f"{SIGNAL_TOLD_SECONDS:.0f} s. This process is at {place or 'an unknown line'}. Send the signal again "
                "to end it at once, without a checkpoint.\n"
            )
            sys.stderr.flush()

    def _end_alone(self) -> None:
        """After another process has ended, end this one if a signal asks for it and its main thread does not fail.

        The main thread may wait where it does not notice, as for input.
        """
        while self._is_acting or not any(self._actions[number] != "save" for number in self._last):
            self._wait()
            if self._done.is_set():
                return
        if not self._done.wait(ALONE_SECONDS):
            number = next(number for number in self._last if self._actions[number] != "save")
            name = signal.Signals(number).name
            sys.stderr.write(f"rank {self._rank} ends by {name}, without a checkpoint: another process has ended\n")
            sys.stderr.flush()
            os._exit(128 + number)

    def _note(self, number: int) -> None:
        """A signal to this process; the second one ends it."""
        if number not in self._handlers:
            return
        now, before = time.monotonic(), self._last.get(number)
        self._last[number] = now
        if before is not None and now - before < SAME_SIGNAL_SECONDS:
            return
        if before is not None and self._actions[number] != "save":
            sys.stderr.write(f"rank {self._rank}: a second {signal.Signals(number).name} ends this process at once\n")
            os._exit(128 + number)
        self._received.append(number)

    def _first(self) -> int:
        """The received signal to act on: one that ends the run, if there is one, as it asks for a checkpoint too."""
        return min(self._received, key=lambda number: self._actions[number] == "save")

    def _look(self, board: Board) -> None:
        """Find out whether any process has received a signal, and agree on the batch after which all act."""
        place = f"{self._place}/{self._number}"
        if self._received:
            board.set_once(f"{place}/signal", str(self._first()).encode())  # another process may have had another one
        elif not board.has(f"{place}/signal"):
            return
        self._signal = int(board.get(f"{place}/signal"))
        self._agreed.clear()
        self._target = NEVER
        self.is_due = True  # from here on, the main thread waits after its batch
        board.set_once(f"{place}/{self._rank}", str(self._batches).encode())
        try:
            self._target = self._agree(board, place)
        finally:  # without an answer, training goes on: if another process has ended, the next collective fails
            self._agreed.set()
        self._received = [number for number in self._received if number != self._signal]  # it went to several

    def _look_for_others(self, board: Board) -> None:
        """Find out, while this process has a signal to act on, whether two of the others still run.

        Two, as each asking for each would keep the store busy: if one process fails, the others do soon.

        Raises:
            LaunchError: One has ended.
        """
        if self._watches is None:
            neighbours = {0, (self._rank + 1) % self._world_size} - {self._rank}
            self._watches = [board.watch(rank) for rank in sorted(neighbours)]
        for watch in self._watches:
            watch()

    def _agree(self, board: Board, place: str) -> int:
        """The batch after which all act; :data:`NEVER` if they do not agree in time.

        Raises:
            LaunchError: Another process has ended without an answer.
        """
        if self._rank != 0:
            comes = board.wait(f"{place}/target", 2 * AGREE_SECONDS, 0)
            return int(board.get(f"{place}/target")) if comes else NEVER
        target, ranks = NEVER, range(self._world_size)
        try:
            if not board.absent(place, ranks, AGREE_SECONDS):
                # A process that was between the addition and the comparison goes on to the next batch.
                target = 1 + max(int(board.get(f"{place}/{rank}")) for rank in ranks)
            else:
                logger.warning("the processes did not agree on when to act on %s", signal.Signals(self._signal).name)
        finally:
            board.set_once(f"{place}/target", str(target).encode())
        return target

    # -- the loop ------------------------------------------------------------------------------------------------

    def after_batch(self) -> None:
        """Called after each batch: act on a signal, if this is the batch that the processes have agreed on.

        Raises:
            EndedBySignal: The signal's action is to stop; the checkpoint is written.
        """
        self._batches += 1
        if self.is_due:
            self._act()

    def _act(self) -> None:
        while not self._agreed.wait(1.0) and self._thread is not None and self._thread.is_alive():
            pass
        if self._target == NEVER:
            self._number, self.is_due = self._number + 1, False
        if self._batches < self._target:
            return
        self._is_acting = True
        number = self._signal
        name, action = signal.Signals(number).name, self._actions.get(number, "save")
        path = self._save()
        if self._rank == 0:
            what = f"wrote {path}" if path else "wrote no checkpoint, because checkpoints are turned off"
            ends = {"stop": "ends", "save": "goes on", "requeue": "ends, to be started again by the scheduler"}
            logger.warning("%s: %s, and %s", name, what, ends[action])
            if action == "requeue":
                self._start_again()
        if action != "save":
            raise EndedBySignal(128 + number)
        self._agreed.clear()
        self._number, self.is_due, self._is_acting = self._number + 1, False, False

    def _start_again(self) -> None:
        """Ask the scheduler; if it does not accept, the run ends all the same, with its checkpoint."""
        try:
            asked = subprocess.run(self._requeue, capture_output=True, text=True, timeout=REQUEUE_SECONDS, check=False)
            said = "" if asked.returncode == 0 else asked.stderr.strip() or f"exit code {asked.returncode}"
        except (OSError, subprocess.TimeoutExpired) as error:
            said = str(error)
        if said:
            logger.error("%s: the job is not started again: %s", " ".join(self._requeue), said)
