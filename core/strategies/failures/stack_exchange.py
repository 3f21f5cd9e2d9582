"""Where each process of a run is: for the error about one that does not come.

A thread in each process answers when another one asks, through the store of the run.
"""

from __future__ import annotations

import re
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from types import FrameType
from typing import Any

import torch.distributed as dist
from attrs import evolve, frozen
from torch.distributed.distributed_c10d import PrefixStore, Store

from ..call_sites import is_user_frame
from ..store.liveness import BEAT_SECONDS, beat
from ..store.run_store import another_connection

__all__ = ["Stacks", "Whereabouts", "call_in", "is_timeout"]

POLL_SECONDS = 1.0
"""How often a process looks whether another one asks."""
ANSWER_SECONDS = 4.0
"""How long the one that asks waits for the answers."""
ANSWERS_LISTED = 16
"""Of so many processes the stack is shown."""
FRAMES = 20
"""So many innermost frames of a stack."""

_TIMEOUT = re.compile(r"[Tt]imed out|[Tt]imeout")
_WAITS = (
    *(
        "torch.distributed",
        "torch.autograd.graph",
        "torch_hal.strategies.store.notes",
        "torch_hal.strategies.failures.stack_exchange",
    ),
    "torch_hal.strategies.launchers",
)
"""Modules whose functions wait for other processes; the second, in backward; the last, whether one has failed."""
_WAITS_ITSELF = "torch.nn.parallel.distributed"
"""The module whose functions wait before the module's own forward pass: for its buckets, and for its buffers."""


@frozen
class Whereabouts:
    """Where a process is."""

    rank: int
    is_waiting: bool
    """Whether it waits for other processes, as far as its stack tells."""
    place: str
    """The innermost line of the user's code, and what is called there."""
    stack: str

    @classmethod
    def of_main_thread(cls, rank: int, note: str = "") -> Whereabouts:
        """Of this process, with ``note`` in front of the place."""
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        if frame is None:
            return cls(rank, False, "its main thread has ended", "")
        summary = traceback.extract_stack(frame)
        place = _place(frame)
        modules = _modules(frame)
        waits = any(name.startswith(_WAITS) for name in modules) or modules[:1] == [_WAITS_ITSELF]
        return cls(rank, waits, f"{note}{place}", "".join(traceback.format_list(summary[-FRAMES:])))

    def encode(self) -> str:
        """For the store."""
        return f"{int(self.is_waiting)}\0{self.place}\0{self.stack}"

    @classmethod
    def decode(cls, rank: int, text: str) -> Whereabouts:
        """From the store."""
        waits, place, stack = text.split("\0", 2)
        return cls(rank, waits == "1", place, stack)


class Stacks:
    """Answers where this process is, and asks the others.

    Args:
        store: Of the run.
        rank: Of this process.
        world_size: The number of processes.
    """

    def __init__(self, store: Store, rank: int, world_size: int) -> None:
        self._store, self._rank, self._world_size = store, rank, world_size
        self.note: Callable[[], str] = str
        """Returns what is put in front of this process's place, such as how far it has come."""
        self.has_waited = False
        """Whether this process has waited for others in vain: what it does since then keeps no one waiting."""
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
            self._thread.join(5.0)  # the limit of its requests: see _notes

    def _notes(self) -> Any:
        store = another_connection(self._store)
        store.set_timeout(timedelta(seconds=5))
        return PrefixStore("stacks", store)

    def _answer(self) -> None:
        with suppress(dist.DistError, RuntimeError):  # the store is gone, with the process that served it
            notes = self._notes()
            answered, shown = 0, 0.0
            while not self._done.wait(POLL_SECONDS):
                if time.monotonic() >= shown + BEAT_SECONDS:
                    beat(notes.underlying_store, self._rank)
                    shown = time.monotonic()
                asked = notes.add("asked", 0) if notes.check(["asked"]) else 0
                if asked > answered:
                    own = Whereabouts.of_main_thread(self._rank, self.note())
                    place = evolve(own, is_waiting=own.is_waiting or self.has_waited).encode()
                    for question in range(answered + 1, asked + 1):  # several may have asked meanwhile
                        notes.set(f"{question}/{self._rank}", place)
                    answered = asked

    def ask(self) -> list[Whereabouts]:
        """Where the other processes are, those that answer, by rank."""
        found: dict[int, Whereabouts] = {}
        with suppress(dist.DistError, RuntimeError):
            notes = self._notes()
            question = notes.add("asked", 1)
            left = [rank for rank in range(self._world_size) if rank != self._rank]
            deadline = time.monotonic() + ANSWER_SECONDS
            while left and time.monotonic() < deadline:
                for rank in left[:]:
                    if notes.check([f"{question}/{rank}"]):
                        answer = notes.get(f"{question}/{rank}").decode(errors="replace")
                        found[rank] = Whereabouts.decode(rank, answer)
                        left.remove(rank)
                time.sleep(0.1)
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
    """Whether ``error`` is that of a collective which other processes did not join in time."""
    return isinstance(error, RuntimeError) and bool(_TIMEOUT.search(str(error)))


def call_in(error: BaseException) -> str:
    """The call in which ``error`` was raised, as in ``all_reduce (train.py:12)``."""
    entries = list(traceback.walk_tb(error.__traceback__))
    user = [(frame, line) for frame, line in entries if is_user_frame(frame) and not _is_torchs(frame)]
    names = [frame.f_code.co_name for frame, _ in entries if _is_torchs(frame)]
    name = next((name for name in reversed(names) if not name.startswith("_") and name != "wrapper"), "a collective")
    name = "backward" if "_engine_run_backward" in names else name
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
