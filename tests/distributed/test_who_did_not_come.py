"""The processes that are named when a collective ran out of time: those that did not come, and no others."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from torch._C._distributed_c10d import TCPStore

from core.strategies.failures.stack_exchange import Stacks
from core.strategies.launchers import ScriptLauncher


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
