"""Waiting for a late rank, with many ranks: what it asks of the store grows with the ranks, not with their square."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import nullcontext
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from torch._C._distributed_c10d import HashStore

from core.errors import LaunchError
from core.strategies import meeting_point, time_limits
from core.strategies.partial_save import Meeting
from core.strategies.store import notes
from core.strategies.time_limits import wait_until
from core.utilities import torch_private


class Store:
    """A store in this process that counts the keys of requests for several at once."""

    def __init__(self) -> None:
        self.values: dict[str, int] = {}
        self.listed = 0
        self._lock = threading.Lock()

    def set(self, key: str, value: str) -> None:
        with self._lock:
            self.values[key] = 0

    def add(self, key: str, amount: int) -> int:
        with self._lock:
            self.values[key] = self.values.get(key, 0) + amount
            return self.values[key]

    def check(self, keys: list[str]) -> bool:
        with self._lock:
            self.listed += len(keys) if len(keys) > 1 else 0
            return all(key in self.values for key in keys)


def test_only_two_ranks_list_who_is_missing(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Of 100 ranks that wait for one, each says for how many; ranks 0 and 1 say for whom."""
    monkeypatch.setattr(time_limits, "TELL_SECONDS", 0.0)
    store: Any = Store()
    size = 100

    def meet(rank: int) -> None:
        assert meeting_point.meet(store, "joining", size, rank, timedelta(seconds=60), None)

    threads = [threading.Thread(target=meet, args=(rank,), daemon=True) for rank in range(size)]
    with caplog.at_level(logging.WARNING):
        for thread in threads[:-1]:
            thread.start()
        end = time.monotonic() + 60
        while len(caplog.messages) < size - 1 and time.monotonic() < end:
            time.sleep(0.01)
        threads[-1].start()
        for thread in threads:
            thread.join(60)
    before_it_came = [message for message in caplog.messages if "for rank(s) [" in message]
    assert [message.split()[1] for message in sorted(before_it_came)] == ["0", "1"]
    assert sum("which ranks 0 and 1 list" in message for message in caplog.messages) >= size - 3
    assert store.listed <= 2 * 8 * size  # by halves, where many are missing; all 99 would ask for more than 20,000


@pytest.mark.parametrize("is_alive", [True, False])
def test_a_process_of_another_machine_that_gives_no_more_signs(is_alive: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that waits for it raises an error which names it; not while there are signs."""
    for name, value in {"LOOK_SECONDS": 0.0, "BEAT_SECONDS": 0.01, "SILENT_LOOKS": 5}.items():
        monkeypatch.setattr(notes, name, value)
    store = HashStore()
    monkeypatch.setattr(notes, "_machine", lambda: "another")
    notes.Peers(store, 1)
    monkeypatch.setattr(notes, "_machine", lambda: "this")
    watch = notes.Peers(store, 0).watch(1)
    notes.beat(store, 1)
    with nullcontext() if is_alive else pytest.raises(LaunchError, match="rank 1 has shown no sign"):
        for _ in range(20):
            if is_alive:
                notes.beat(store, 1)
            time.sleep(0.011)
            watch()


@pytest.mark.parametrize("length", [0, notes.LONGEST, notes.LONGEST + 1, 20 << 20])
def test_notes_of_any_length(length: int) -> None:
    """Torch's store closes a connection that sends more than 8 MiB at once; deleting a note leaves nothing of it."""
    store = torch_private.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    there = store.num_keys()
    writer, reader = (notes.Board(store, timedelta(seconds=5), None) for _ in range(2))
    value = bytes(range(256)) * (length // 256) + b"x" * (length % 256)
    writer.set("long", value)
    assert reader.wait("long", 5, 0)
    assert reader.get("long") == value
    reader.delete("long")
    assert store.num_keys() == there


def test_waiting_ends_with_the_condition_or_the_limit() -> None:
    """It returns what the condition has returned last; a limit that is over still means one look."""
    looks = iter([0, None, "there", "later"])
    assert wait_until(lambda: next(looks), 5.0) == "there"
    begin = time.monotonic()
    assert wait_until(list, 0.2) == []
    assert 0.2 <= time.monotonic() - begin < 2.0
    assert wait_until(lambda: "at once", -1.0) == "at once"


def test_waiting_together_has_one_limit_for_all() -> None:
    """Of three ranks of which two have not come, and not the limit for each of them."""
    board = notes.Board(HashStore(), timedelta(seconds=5), None)
    board.set("place/1", b"")
    begin = time.monotonic()
    assert board.absent("place", [0, 1, 2], 0.5) == [0, 2]
    assert time.monotonic() - begin < 0.95


@pytest.mark.parametrize("waiting", [2, 128, 1024])
def test_many_that_wait_for_one_key_look_for_it_less_often(waiting: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever their number is, they make no more than some thousand requests a second together."""
    now, looks = 0.0, []

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(time_limits, "time", SimpleNamespace(monotonic=lambda: now, sleep=sleep))
    store = SimpleNamespace(check=lambda keys: looks.append(keys))
    assert not notes.wait_for_key(store, "key", 60.0, None, waiting)  # type: ignore[arg-type]
    assert len(looks) >= 60
    assert len(looks) * waiting <= 60 * 2100


def test_what_only_the_leader_needs_is_sent_to_no_other() -> None:
    """Of three processes that save: each of the others goes on at once, with its own state alone."""
    store = HashStore()

    def meeting(rank: int) -> Meeting:
        made = object.__new__(Meeting)
        made._strategy = SimpleNamespace(global_rank=rank, world_size=3)  # type: ignore[assignment]
        made._board = notes.Board(store, timedelta(seconds=5), None)
        made.name, made.is_leader, made.absent, made._place, made._phase = "save", rank == 0, (), "here", 0
        return made

    assert meeting(1).gather("of 1", to_all=False) == [None, "of 1", None]
    assert meeting(2).gather("of 2", to_all=False) == [None, None, "of 2"]
    assert meeting(0).gather("of 0", to_all=False) == ["of 0", "of 1", "of 2"]
    assert store.num_keys() == 0
