"""Fork servers as a context manager."""

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
"""Length of the queue of connections to a server."""


@contextmanager
def forks(python: str, environ: Mapping[str, str]) -> Iterator[Mapping[str, str]]:
    """Start two servers, which import torch once and fork for each training process of the tests.

    There are two since the order of a set of strings differs between interpreters, and ranks must not depend on it.

    Args:
        python: The servers' interpreter.
        environ: Environment variables in addition to this process's; their PYTHONPATH has this folder. Processes with
            other values of variables that torch reads when it is imported start as usual.

    Yields:
        ``environ``, on Linux with ``FORK_SERVERS``, the servers' addresses.
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
