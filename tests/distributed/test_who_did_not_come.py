"""The processes that are named when a collective ran out of time: those that did not come, and no others."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from torch._C._distributed_c10d import TCPStore

from core.strategies.calls import Begun
from core.strategies.launchers import ScriptLauncher
from core.strategies.stack_exchange import Stacks, Whereabouts, difference


def test_who_has_waited_in_vain_is_not_to_blame() -> None:
    """Rank 1 runs the user's code. Once its own wait has timed out, it only reports that it was waiting."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    asking, asked = Stacks(store, 0, 2), Stacks(store, 1, 2)
    asked.start()
    try:
        with ThreadPoolExecutor(1) as thread:  # the main thread is where rank 1 is
            before, _ = thread.submit(asking.report, "timed out").result()
            asked.has_waited = True
            after, _ = thread.submit(asking.report, "timed out").result()
    finally:
        asked.stop()
    assert before.startswith("timed out; rank 1 did not come: it is at test_who_did_not_come.py:")
    assert after.startswith("timed out; rank 1 waits at test_who_did_not_come.py:")


def test_who_looks_whether_another_has_failed_is_not_to_blame() -> None:
    """As rank 0 does, which has started the others, when its own collective fails."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    asking, asked = Stacks(store, 0, 2), Stacks(store, 1, 2)
    asked.start()
    try:
        with ThreadPoolExecutor(1) as thread:
            said = thread.submit(asking.report, "timed out")
            ScriptLauncher(1, lambda rank: {}, strategy="ddp").check(settle=2.5)
            assert said.result()[0].startswith("timed out; rank 1 waits at test_who_did_not_come.py:")
    finally:
        asked.stop()


def begun(rank: int, *names: str, group: int | None = None, waits: bool = True, for_rank: int | None = None) -> Any:
    """A process whose strategy has begun these collectives; it waits in the last one, for a note, or in backward."""
    numbered = tuple(enumerate(names, 1))
    in_collective = waits and for_rank is None and (group is None or group == len(names))
    own = Begun(len(names), numbered, len(names) if group is None else group, for_rank)
    return Whereabouts(rank, waits, "somewhere", "", f"call {rank}", in_collective, own)


@pytest.mark.parametrize(
    ("other", "is_different"),
    [
        (begun(0, "reduce", "barrier"), True),
        (begun(0, "reduce", group=2), True),  # in backward
        (begun(0, "reduce", group=1), False),
        (begun(0, "reduce", "barrier", waits=False), False),
    ],
)
def test_who_waits_for_a_process_in_a_collective(other: Any, is_different: bool) -> None:
    """Process 1 saves, and waits for process 0, which waits for process 1 elsewhere."""
    own = begun(1, "reduce", for_rank=0)
    assert (difference(own, [other, own]) is not None) == is_different


@pytest.mark.parametrize(
    ("others", "is_different"),
    [
        ([begun(1, "reduce", "gather")], True),  # another one
        ([begun(1, "gather", "barrier", "reduce")], True),  # another one before
        ([begun(1, "reduce", group=2)], True),  # one of backward, which the group counts too
        ([begun(1, "reduce", for_rank=0)], True),
        ([begun(1, "reduce", for_rank=2), begun(2, "reduce", "barrier")], True),
        ([begun(1, "reduce", "barrier")], False),  # the same
        ([begun(1, "reduce", "barrier", "gather")], False),  # it was first to come out of it
        ([begun(1, "reduce", waits=False)], False),  # late
        ([begun(1, "reduce", waits=False, group=9)], False),  # it sends to others, one by one
        ([begun(1, "reduce", group=1)], False),  # in backward, of its own
        ([begun(1, "reduce", for_rank=2), begun(2, "reduce", waits=False)], False),  # for one that is late
    ],
)
def test_who_is_in_a_different_collective(others: list[Any], is_different: bool) -> None:
    """Process 0 waits in its second collective. Who may still come to it is not to blame."""
    own = begun(0, "reduce", "barrier")
    found = [own, *(Whereabouts.decode(other.encode()) for other in others)]
    told = difference(own, found)
    assert (told is not None) == is_different
    assert told is None or "rank 0: call 0; rank 1: call 1" in told
