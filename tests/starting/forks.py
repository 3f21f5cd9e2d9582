"""Having fork servers for a while."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

WAITING = 64
"""Processes that may wait for a server at a time."""


@contextmanager
def forks(python: str, environ: Mapping[str, str]) -> Iterator[Mapping[str, str]]:
    """Serve forks of processes that have imported torch: of two, since each has its own order in sets of strings.

    Args:
        python: Their interpreter.
        environ: Their variables next to this process's; this folder is on its path. So they must be in processes that
            are to be forked from them.

    Yields:
        Those variables, and on Linux the one by which processes find the servers.
    """
    if sys.platform != "linux":
        yield environ
        return
    with tempfile.TemporaryDirectory(prefix="forks-") as folder, ExitStack() as servers:
        addresses = [str(Path(folder, name)) for name in ("even", "odd")]
        for address in addresses:
            servers.enter_context(_server(python, {**os.environ, **environ}, address))
        yield {**environ, "FORK_SERVERS": os.pathsep.join(addresses)}


@contextmanager
def _server(python: str, environ: Mapping[str, str], address: str) -> Iterator[None]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(WAITING)
        code = f"exec(__import__('fork_server').serve({listener.fileno()}), globals())"
        server = subprocess.Popen((python, "-c", code), env=environ, pass_fds=[listener.fileno()])
    try:
        yield
    finally:
        server.kill()
        server.wait()
