"""The place of each process, for the error about one that does not come or is in another collective.

A thread in each process answers when another one asks, through the store of the run. It asks itself if the process has
been in one collective of its strategy for some seconds; if another process turns out to be in a different one, it ends
the run: no exception reaches the main thread there.
"""

from __future__ import annotations

import json
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from types import FrameType
from typing import Any

import torch.distributed as dist
from attrs import asdict, evolve, frozen
from torch.distributed.distributed_c10d import PrefixStore, Store

from ..utilities.objects import by_rank
from ..utilities.torch_private import is_backward, prepares_objects
from .calls import NOTHING, Begun, Calls, is_user_frame, method_called
from .store.notes import beat
from .store.tcp_store import another_connection
from .time_limits import (
    ANSWER_SECONDS,
    ANSWERS_POLL_SECONDS,
    BEAT_SECONDS,
    COLLECTIVE_SECONDS,
    QUESTION_POLL_SECONDS,
    RAISES_SECONDS,
    REQUEST_SECONDS,
    wait_until,
)

IDLE = 0.1
"""A thread that computes for a smaller part of the time waits."""
ANSWERS_LISTED = 16
"""The number of processes that are shown with their stacks."""
FRAMES = 20
"""So many innermost frames of a stack."""

_TIMEOUT = re.compile(r"[Tt]imed out|[Tt]imeout")
_WAITS = (
    "torch.distributed",
    "torch_hal.strategies.store.notes",
    "torch_hal.strategies.stack_exchange",
    "torch_hal.strategies.launchers",
)
"""Modules whose functions wait for other processes; those of the last, for whether one has failed."""
_WAITS_IF_IDLE = "torch.autograd.graph"
"""The module in which backward waits for other processes, or computes."""
_COLLECTIVES = "torch_hal.strategies.parallel"
"""The module of the collectives that are counted."""
_WAITS_ITSELF = "torch.nn.parallel.distributed"
"""The module whose functions wait before the module's own forward pass: for its buckets, and for its buffers."""


@frozen
class Whereabouts:
    """Where a process is."""

    rank: int
    is_waiting: bool
    """Whether it waits for other processes, as far as its stack shows."""
    place: str
    """The innermost line of the user's code, and what is called there."""
    stack: str
    call: str = ""
    """The method that the user's code called, and the line; where it calls none, the place."""
    is_in_collective: bool = False
    """Whether it waits in a collective of its strategy."""
    begun: Begun = NOTHING
    """The collectives that it has begun."""

    @classmethod
    def of_main_thread(
        cls,
        rank: int,
        note: str = "",
        begun: Begun = NOTHING,
        is_idle: bool = True,
        with_stack: bool = True,
    ) -> Whereabouts:
        """Of this process.

        Args:
            rank: Of this process.
            note: What is put in front of the place.
            begun: The collectives that it has begun.
            is_idle: Whether the thread computes nothing.
            with_stack: Whether the stack is shown to someone. It takes a look at each file in it.
        """
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        if frame is None:
            return cls(rank, False, "its main thread has ended", "")
        stack = "".join(traceback.format_list(traceback.extract_stack(frame)[-FRAMES:])) if with_stack else ""
        place = _place(frame)
        modules, function = _modules(frame), frame.f_code.co_name
        waits = any(name.startswith(_WAITS) for name in modules) or modules[:1] == [_WAITS_ITSELF]
        waits = waits or (is_idle and _WAITS_IF_IDLE in modules)
        is_collective = next((name for name in modules if not name.startswith("torch.")), "") == _COLLECTIVES
        if function in ("send", "recv"):
            begun = evolve(begun, sequence=None)  # for one other process, which may be busy
        return cls(
            rank,
            waits,
            f"{note}{place}",
            stack,
            _call(frame, modules) if waits else place,
            waits and is_collective and not prepares_objects(frame),  # which precedes the collective
            begun,
        )

    def encode(self) -> str:
        """For the store."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> Whereabouts:
        """From the store."""
        facts = json.loads(text)
        return cls(**{**facts, "begun": Begun(**facts["begun"])})


def difference(own: Whereabouts, found: Sequence[Whereabouts]) -> str | None:
    """The message if a process is in another collective than this one, which waits in its own; or ``None``.

    Args:
        own: Where this process is.
        found: Where each process is that answers, by rank.
    """
    in_call = {each.rank: each.begun.count for each in found if each.is_in_collective}
    if not any(_is_elsewhere(own.begun, other, in_call) for other in found if other is not own):
        return None
    calls = by_rank([each.call for each in found], [each.rank for each in found])
    return (
        f"processes are in different collectives: {calls}. Call the same one in every "
        "process, in one order, not under a condition that holds only in some, such as `if is_global_zero:`."
    )


def _is_elsewhere(own: Begun, other: Whereabouts, in_call: Mapping[int, int]) -> bool:
    """Whether ``other`` never comes to the newest collective of this process."""
    begun = other.begun
    names = dict(begun.newest)
    if any(names.get(number, name) != name for number, name in own.newest):
        return True
    if own.waits_for is not None and other.is_waiting:  # for a note of a process that waits for this one?
        return own.waits_for == other.rank and begun.is_ahead_of(own)
    if not other.is_waiting or begun.count >= own.count:
        return False  # it computes and may still reach this collective, or has already begun it
    if begun.waits_for is not None:  # for a process that is in a collective, and waits for this one there?
        return in_call.get(begun.waits_for, 0) > begun.count
    # The process group has begun as many there, so the one that waits here is another one there: of backward, say.
    return own.sequence is not None and begun.sequence is not None and begun.sequence >= own.sequence


class Stacks:
    """Answers where this process is, and asks the others.

    Args:
        store: Of the run.
        rank: Of this process.
        world_size: The number of processes.
        end: Called with the reason if processes turn out to be in different collectives; ends this process.
    """

    def __init__(self, store: Store, rank: int, world_size: int, end: Callable[[str], None] | None = None) -> None:
        self._store, self._rank, self._world_size, self._end = store, rank, world_size, end
        self.calls = Calls()
        """The collectives that this process has begun."""
        self._is_idle, self._cpu_seconds = False, 0.0
        self._since, self._suspected = 0.0, ""
        self._in_call: tuple[int, int | None] | None = None
        self.reason = ""
        """Why processes end that are in different collectives."""
        self.note: Callable[[], str] = str
        """Returns a text to show before this process's place, such as its progress."""
        self.has_waited = False
        """Whether this process gave up waiting for others. No one waits for what it does afterwards."""
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to answer."""
        self._thread = threading.Thread(target=self._answer, name="core-stacks", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Answer no more: the interpreter must not end while the thread is in the store."""
        self._done.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(REQUEST_SECONDS)

    def _notes(self) -> Any:
        store = another_connection(self._store)
        store.set_timeout(timedelta(seconds=REQUEST_SECONDS))
        return PrefixStore("stacks", store)

    def _answer(self) -> None:
        with suppress(dist.DistError, RuntimeError):  # the store is gone, with the process that served it
            notes = self._notes()
            answered, shown = 0, 0.0
            while not self._done.wait(QUESTION_POLL_SECONDS):
                self._note_idle()
                if time.monotonic() >= shown + BEAT_SECONDS:
                    beat(notes.underlying_store, self._rank)
                    shown = time.monotonic()
                asked = notes.add("asked", 0) if notes.check(["asked"]) else 0
                if asked > answered:
                    own = self._own(with_stack=True)
                    place = evolve(own, is_waiting=own.is_waiting or self.has_waited).encode()
                    for question in range(answered + 1, asked + 1):  # several may have asked meanwhile
                        notes.set(f"{question}/{self._rank}", place)
                    answered = asked
                self._look(notes)
                if asked and notes.check(["different"]):
                    self._end_different(notes.get("different").decode(errors="replace"))
                    return

    def _own(self, *, with_stack: bool = False) -> Whereabouts:
        begun = self.calls.begun()  # before the place: what it waits in is counted
        return Whereabouts.of_main_thread(self._rank, self.note(), begun, self._is_idle, with_stack)

    def _note_idle(self) -> None:
        """Note whether the main thread has computed since the last look; if the system does not report it, it waits."""
        clock = getattr(time, "pthread_getcpuclockid", None)
        seconds = 0.0 if clock is None else time.clock_gettime(clock(threading.main_thread().ident))
        self._is_idle, self._cpu_seconds = seconds - self._cpu_seconds < IDLE * QUESTION_POLL_SECONDS, seconds

    def _look(self, notes: Any) -> None:
        """Find out, if this process has been in one collective for long, whether others are in a different one."""
        own = self._own()
        now = time.monotonic()
        waits = own.is_in_collective or own.begun.waits_for is not None
        if not waits or (own.begun.count, own.begun.waits_for) != self._in_call:
            self._in_call = (own.begun.count, own.begun.waits_for) if waits else None
            self._since, self._suspected = now, ""
            return
        if self._end is None or now < self._since + COLLECTIVE_SECONDS:
            return
        self._since = now
        if notes.compare_set(f"asks/{self._in_call}", "", str(self._rank)) != str(self._rank).encode():
            return  # one asks for all that wait in the same
        found = sorted([own, *self.ask(self._done)], key=lambda each: each.rank)
        suspected = difference(own, found) or ""
        if suspected and suspected == self._suspected:
            notes.set("different", suspected)
        self._suspected = suspected

    def _end_different(self, reason: str) -> None:
        """End this process. Rank 0 fails by itself without the others: it has often started them, and ends last."""
        self.reason = reason
        begun = self.calls.begun()
        if self._rank == 0:
            self._done.wait(RAISES_SECONDS)
        if self._end is not None and self._own().is_waiting and self.calls.begun() == begun:
            self._end(reason)

    def ask(self, ended: threading.Event | None = None) -> list[Whereabouts]:
        """Where the other processes are, those that answer, by rank.

        Args:
            ended: Ends the wait for answers; :meth:`stop` does not wait for all of it.
        """
        ended = ended or threading.Event()
        found: dict[int, Whereabouts] = {}
        with suppress(dist.DistError, RuntimeError):
            notes = self._notes()
            question = notes.add("asked", 1)
            left = [rank for rank in range(self._world_size) if rank != self._rank]

            def is_over() -> bool:
                for rank in left[:]:
                    if notes.check([f"{question}/{rank}"]):
                        answer = notes.get(f"{question}/{rank}").decode(errors="replace")
                        found[rank] = Whereabouts.decode(answer)
                        left.remove(rank)
                return not left or ended.is_set()

            wait_until(is_over, ANSWER_SECONDS, ANSWERS_POLL_SECONDS)
        return [found[rank] for rank in sorted(found)]

    def report(self, what: str, own: Whereabouts | None = None) -> tuple[str, str]:
        """Who does not come: one line that begins with ``what``, and where those processes are.

        Args:
            what: What this process waited for.
            own: Where this process is, unless it waits for others.
        """
        found = sorted([*self.ask(), *([] if own is None else [own])], key=lambda each: each.rank)
        silent = sorted({*range(self._world_size)} - {self._rank} - {each.rank for each in found})
        absent = [each for each in found if not each.is_waiting]
        parts = [f"rank {each.rank} did not come: it is {each.place}" for each in absent[:ANSWERS_LISTED]]
        if silent:
            names = ", ".join(map(str, silent[:ANSWERS_LISTED])) + (", …" if len(silent) > ANSWERS_LISTED else "")
            parts.append(f"rank(s) {names} did not answer: stopped, unreachable, or in C code that holds Python's lock")
        if not parts:
            parts = [f"rank {each.rank} waits {each.place}" for each in found[:ANSWERS_LISTED]]
            parts.append("all wait, so they may be in different calls, or the network between them is lost")
        shown = absent or found
        stacks = [f"[rank{each.rank}] is here:\n{each.stack}" for each in shown[:ANSWERS_LISTED]]
        return f"{what}; {'; '.join(parts)}", "".join(stacks)


def is_timeout(error: BaseException) -> bool:
    """Whether ``error`` is the timeout of a collective that other processes did not join."""
    return isinstance(error, RuntimeError) and bool(_TIMEOUT.search(str(error)))


def call_in(error: BaseException) -> str:
    """The call in which ``error`` was raised, as in ``all_reduce (train.py:12)``."""
    entries = list(traceback.walk_tb(error.__traceback__))
    user = [(frame, line) for frame, line in entries if is_user_frame(frame) and not _is_torchs(frame)]
    names = [frame.f_code.co_name for frame, _ in entries if _is_torchs(frame)]
    name = next((name for name in reversed(names) if not name.startswith("_") and name != "wrapper"), "a collective")
    name = "backward" if any(map(is_backward, names)) else name
    if not user:
        return name
    frame, line = user[-1]
    return f"{name} ({_file(frame)}:{line} in {frame.f_code.co_name})"


def _place(innermost: FrameType) -> str:
    frame: FrameType | None = innermost
    while frame is not None and (not is_user_frame(frame) or _is_torchs(frame) or _is_pythons(frame)):
        frame = frame.f_back
    if frame is None:
        return f"in {innermost.f_code.co_name} ({_file(innermost)}:{innermost.f_lineno})"
    inner = "" if frame is innermost else f", in {innermost.f_code.co_name}"
    return f"at {_file(frame)}:{frame.f_lineno} in {frame.f_code.co_name}{inner}"


def _call(innermost: FrameType, modules: Sequence[str]) -> str:
    method, site = method_called(innermost)
    name = "backward" if _WAITS_IF_IDLE in modules else innermost.f_code.co_name
    if not method:
        return f"{name} {_place(innermost).partition(', in ')[0]}"
    called = f"{method} ({site})" if site else method
    return f"{name} in {called}" if name == "backward" else called


def _modules(innermost: FrameType) -> list[str]:
    """The modules of the innermost frames, up to the user's code."""
    names, frame = [], innermost
    while frame is not None and (not is_user_frame(frame) or _is_torchs(frame)):
        names.append(str(frame.f_globals.get("__name__", "")))
        frame = frame.f_back  # type: ignore[assignment]
    return names


def _is_torchs(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] == "torch"


def _is_pythons(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] in sys.stdlib_module_names - {"__main__"}


def _file(frame: FrameType) -> str:
    return frame.f_code.co_filename.replace("\\", "/").rpartition("/")[2]
