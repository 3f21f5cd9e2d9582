"""The store of a run, where its processes leave notes for each other."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from ...errors import LaunchError
from ..calls import Calls
from ..time_limits import (
    BEAT_SECONDS,
    FIRST_PAUSE_SECONDS,
    LOOK_SECONDS,
    LOOKS_A_SECOND,
    SILENT_LOOKS,
    wait_until,
)
from .tcp_store import another_connection

LONGEST = 4 << 20
"""Bytes of the longest value: torch's store closes the connection that sends it more than 8 MiB, and the run ends."""
PIECES = b"\0pieces "
"""The prefix of a note that is split into this many others. No pickle and no text begins with it."""


class Board:
    """Where the processes of a run leave notes for each other, without a collective.

    Args:
        store: The store of the run.
        timeout: How long to wait for another process.
        check: Called while waiting; raises an exception if another process has failed.
        peers: The processes of the run; ``None`` if it is not known whether they run.
        calls: What is told that this process waits; ``None`` for what only a thread of it uses.
        world_size: The number of processes, which may all wait for rank 0.
    """

    def __init__(
        self,
        store: Store,
        timeout: timedelta,
        check: Callable[[], None] | None,
        peers: Peers | None = None,
        calls: Calls | None = None,
        world_size: int = 1,
    ) -> None:
        self.timeout = timeout
        self._store, self._check, self._peers = store, check, peers
        self._world_size = world_size
        self._calls = Calls() if calls is None else calls
        self.meetings: dict[str, int] = {}
        """How often this process has met the others at each place in the user's code; see :class:`Meeting`."""
        self.alone: set[str] = set()
        """Where no other process came the last time."""
        self._pieces: dict[str, int] = {}
        """In how many pieces this process has written or read a note, where it is too long for one."""

    def set(self, key: str, value: bytes) -> None:
        """Leave a note, of any length, which every process can read."""
        with _store_errors():
            if len(value) > LONGEST:
                starts = range(0, len(value), LONGEST)
                for number, start in enumerate(starts):
                    self._set(f"{key}/piece {number}", value[start : start + LONGEST])
                self._pieces[key] = len(starts)
                value = PIECES + str(len(starts)).encode()
            self._set(key, value)  # the last: whoever finds it finds its pieces

    def _set(self, key: str, value: bytes) -> None:
        self._store.set(f"board/{key}", value)  # type: ignore[arg-type]  # torch takes bytes as well

    def get(self, key: str) -> bytes:
        """A note; waits for it."""
        with _store_errors():
            value = self._store.get(f"board/{key}")
            if not value.startswith(PIECES):
                return value
            count = self._pieces[key] = int(value.removeprefix(PIECES))
            return b"".join(self._store.get(f"board/{key}/piece {number}") for number in range(count))

    def has(self, key: str) -> bool:
        """Whether there is a note."""
        with _store_errors():
            return self._store.check([f"board/{key}"])

    def set_once(self, key: str, value: bytes) -> None:
        """Leave a note, unless there is one."""
        with _store_errors():
            self._store.compare_set(f"board/{key}", "", value.decode())

    def with_own_connection(self) -> Board:
        """This board for another thread: a connection serves one request at a time."""
        with _store_errors():
            store = another_connection(self._store)
        return Board(store, self.timeout, None, self._peers, None, self._world_size)

    def absent(self, place: str, ranks: Iterable[int], seconds: float, goes_on: bool = False) -> list[int]:
        """Wait for the note ``place/rank`` of each of ``ranks``; return those that did not write it within ``seconds``.

        Args:
            place: What the keys begin with.
            ranks: Of the processes that leave the notes.
            seconds: How long it waits for all of them together.
            goes_on: As for :meth:`wait`.

        Raises:
            LaunchError: As :meth:`wait`.
        """
        deadline = time.monotonic() + seconds
        return [rank for rank in ranks if not self.wait(f"{place}/{rank}", deadline - time.monotonic(), rank, goes_on)]

    def delete(self, key: str) -> None:
        """Remove a note that this process has written or read."""
        with _store_errors():
            self._store.delete_key(f"board/{key}")
            for number in range(self._pieces.pop(key, 0)):
                self._store.delete_key(f"board/{key}/piece {number}")

    def watch(self, rank: int) -> Callable[[], None]:
        """What is called again and again while process ``rank`` matters: raises a LaunchError if it has ended."""
        watch = None if self._peers is None else self._peers.watch(rank, self._store)

        def look() -> None:
            if watch is not None:
                with _store_errors():
                    watch()

        return look

    def wait(self, key: str, seconds: float, rank: int, goes_on: bool = False) -> bool:
        """Wait for a note of process ``rank``; whether it is there within ``seconds``.

        Args:
            key: The note.
            seconds: How long it waits.
            rank: Of the process that leaves it.
            goes_on: Whether this process does without it, so that no other one waits for this one in vain.

        Raises:
            LaunchError: That process has ended or leaves the run, another one has failed, or the store was lost.
        """
        watch = None if self._peers is None else self._peers.watch(rank, self._store, is_needed=True)

        def look() -> None:
            if self._check is not None:
                self._check()
            if watch is not None:
                watch()

        with _store_errors(), nullcontext() if goes_on else self._calls.waiting_for(rank):
            try:
                return wait_for_key(self._store, f"board/{key}", seconds, look, 1 if rank else self._world_size)
            except LaunchError:
                if self.has(key):  # it has left it, and then ended
                    return True
                raise


def wait_for_key(store: Store, key: str, seconds: float, check: Callable[[], None] | None, waiting: int = 1) -> bool:
    """Wait until ``key`` is in ``store``; whether it is within ``seconds``. ``waiting`` processes do so."""

    def is_there() -> bool:
        if store.check([key]):
            return True
        if check is not None:
            check()
        return False

    # The store's own wait cannot be interrupted, does not notice that a process has died, and with a time limit torch
    # writes warnings to the terminal each time.
    pause = min(LOOK_SECONDS, max(FIRST_PAUSE_SECONDS, waiting / LOOKS_A_SECOND))
    return wait_until(is_there, seconds, pause)


@contextmanager
def _store_errors() -> Iterator[None]:
    try:
        yield
    except dist.DistError as error:
        raise lost_store(error) from error


def lost_store(error: Exception) -> LaunchError:
    """The error of a process whose store is gone."""
    return LaunchError(f"the store in which the processes meet was lost, probably with the process serving it: {error}")


class Peers:
    """The processes of a run. On Linux, those of one machine see each other; others go by the signs that they give."""

    def __init__(self, store: Store, rank: int) -> None:
        self._store, self._rank = store, rank
        self._machine = _machine()
        store.set(f"peers/process/{rank}", f"{os.getpid()} {_start_of(os.getpid())} {self._machine}")

    def watch(self, rank: int, store: Store | None = None, is_needed: bool = False) -> Watch:
        """Called while this process waits for process ``rank``.

        Args:
            rank: Of that process.
            store: The connection to the store; this object's own unless given.
            is_needed: Whether it is an error if that process leaves the run without having called the same method.
        """
        return Watch(self._store if store is None else store, rank, self._machine, is_needed)


class Watch:
    """Called again and again while a process waits for another: raises an error if that has ended."""

    def __init__(self, store: Store, rank: int, machine: str, is_needed: bool) -> None:
        self._store, self._rank, self._machine, self._is_needed = store, rank, machine, is_needed
        now = time.monotonic()
        self._next_look, self._next_sign = now + LOOK_SECONDS, now + BEAT_SECONDS
        self._process: tuple[str, str] | None = None
        self._sign, self._silent = b"", 0

    def __call__(self) -> None:
        """Look, if it is time.

        Raises:
            LaunchError: The process has ended, as far as can be seen from here.
        """
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + LOOK_SECONDS
        if self._is_needed and self._store.check([f"leaving/{self._rank}"]):
            raise LaunchError(
                f"rank {self._rank} has ended its script, or torn down, and another process waits for it in a call "
                f"that needs rank {self._rank}. Make the call in every process, or in rank {self._rank} too."
            )
        number, started = self._process = self._process or self._find()
        if number and _start_of(int(number)) != started:
            raise self._error(f"rank {self._rank} (process {number}) has ended")
        if not number and now >= self._next_sign:
            self._next_sign = now + BEAT_SECONDS
            self._look_for_sign()

    def _find(self) -> tuple[str, str]:
        """The process's ID and start, if it is one of this machine."""
        text = _read(self._store, f"peers/process/{self._rank}").decode()
        number, _, rest = text.partition(" ")
        started, _, machine = rest.partition(" ")
        return (number, started) if self._machine and machine == self._machine else ("", "")

    def _look_for_sign(self) -> None:
        before, self._sign = self._sign, _read(self._store, f"peers/sign/{self._rank}")
        self._silent = self._silent + 1 if before and self._sign == before else 0
        if self._silent >= SILENT_LOOKS:
            raise self._error(
                f"rank {self._rank} has shown no sign for {SILENT_LOOKS * BEAT_SECONDS:.0f} s: it has ended, is "
                "stopped, or its machine cannot be reached"
            )

    def _error(self, text: str) -> LaunchError:
        error = LaunchError(text)
        error.rank, error.exit_code = self._rank, 1
        return error


def beat(store: Any, rank: int) -> None:
    """Show that process ``rank`` runs; called every ``BEAT_SECONDS`` by one of its threads."""
    store.add(f"peers/sign/{rank}", 1)


def _read(store: Store, key: str) -> bytes:
    return store.get(key) if store.check([key]) else b""


def _machine() -> str:
    """Processes with the same text see each other's IDs; empty if that cannot be said."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        # The same ID is another process in another PID namespace, such as a container's.
        return f"{platform.node()} {boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _start_of(process: int) -> str:
    """When a process was started, which distinguishes it from a later one with its ID; empty if it has ended."""
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
            # See proc(5): the name in parentheses may hold any character; behind it, the start is the 20th field.
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in ("Z", "X") else fields[19]
