"""A check that a process which another one waits for is alive: a note in the store does not show that."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import Any

from torch.distributed.distributed_c10d import Store

from ...errors import LaunchError

__all__ = ["BEAT_SECONDS", "Peers", "Watch", "beat"]

LOOK_SECONDS = 1.0
"""How often a process looks whether one that it waits for still runs."""
BEAT_SECONDS = 5.0
"""How often a process shows that it runs, to those of other machines, and how often these look."""
SILENT_LOOKS = 12
"""So many looks in a row must find no sign of a process before it counts as ended: it may be busy in C code."""


class Peers:
    """The processes of a run. On Linux, those of one machine see each other; others go by the signs that they give.

    Args:
        store: Of the run.
        rank: Of this process.
    """

    def __init__(self, store: Store, rank: int) -> None:
        self._store, self._rank = store, rank
        self._machine = _machine()
        store.set(f"peers/process/{rank}", f"{os.getpid()} {_start_of(os.getpid())} {self._machine}")

    def watch(self, rank: int, store: Store | None = None, is_needed: bool = False) -> Watch:
        """What is called while this process waits for process ``rank``.

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
    """Show that process ``rank`` runs; called every :data:`BEAT_SECONDS` by one of its threads."""
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
    """When a process was started, which tells it from a later one with its ID; empty if it has ended."""
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
            # See proc(5): the name in parentheses may hold any character; behind it, the start is the 20th field.
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in ("Z", "X") else fields[19]
