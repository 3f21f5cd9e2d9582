"""Ports of the store: only this machine reaches it, and a port that is taken for a moment is waited for."""

from __future__ import annotations

import errno
import socket
import subprocess
import sys
import threading

import pytest

from core.strategies.store import tcp_store
from core.strategies.store.tcp_store import listen_on_loopback


def test_a_port_that_a_connection_holds_for_a_moment() -> None:
    """Between a launcher's choice of a free port and the store, any program's connection can get that port."""
    taken = socket.create_server(("127.0.0.1", 0))
    port = taken.getsockname()[1]
    threading.Timer(0.3, taken.close).start()
    listener = listen_on_loopback("localhost", port)
    assert listener is not None
    with listener:
        assert listener.getsockname() == ("127.0.0.1", port)


def test_a_port_that_stays_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the operating system's error, once the time is up."""
    monkeypatch.setattr(tcp_store, "PORT_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError) as error:
        listen_on_loopback("127.0.0.1", taken.getsockname()[1])
    assert error.value.errno == errno.EADDRINUSE


def test_other_addresses() -> None:
    """An address that other machines reach is left to torch."""
    assert listen_on_loopback("192.0.2.1", 0) is None
    assert listen_on_loopback("some-host", 0) is None


FORKS = """
import gc
import os
import sys

from core.strategies.store.tcp_store import RunStore, host_store

gc.disable()
sets = []
for _ in range(20):
    found = {"store": RunStore("run", host_store("127.0.0.1"))}
    found["itself"] = found
    sets.append(found)
kept, sets = sets[:10], None
child = os.fork()
if not child:
    gc.collect()  # as happens in a loader's worker
    kept = None
    gc.collect()
    sys.exit(7)  # and not at once, as by os._exit
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
for found in kept:
    found["store"].set("a", "b")
    assert found["store"].get("a") == b"b"
"""


def test_a_forked_process_destroys_no_store() -> None:
    """The stores that its parent serves, and served in earlier runs, harm a fork neither as garbage nor at its end."""
    subprocess.run([sys.executable, "-c", FORKS], check=True, timeout=120)
