"""Runs a benchmark's script as the ranks of a run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress

from torch.distributed import TCPStore  # type: ignore[attr-defined]

__all__ = ["run_ranks"]

OF_LAUNCHERS = (
    *("CORE_", "RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "MASTER_", "TORCHELASTIC_"),
    *("HOROVOD_", "CROSS_", "DS_"),
)


def run_ranks(
    command: Sequence[object], ranks: int = 1, machines: int = 1, seconds: float = 400, horovodrun: bool = False
) -> str:
    """Run ``command``, a script and its arguments, to its end, as torchrun or horovodrun would.

    Args:
        command: Without the interpreter. It runs in an empty directory.
        ranks: Number of processes; 1 gets no variables, and may start others.
        machines: How many machines the processes say they are on.
        seconds: Time limit.
        horovodrun: Whether that starts the processes.

    Returns:
        What the processes printed if one of them failed; else nothing.
    """
    environ = {name: value for name, value in os.environ.items() if not name.startswith(OF_LAUNCHERS)}
    environ |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    whole = [sys.executable, *map(str, command)]
    if horovodrun:
        whole = [sys.executable, "-m", "horovod.runner.launch", "-np", str(ranks), "--gloo", *whole]
        ranks = 1
    store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    local = ranks // machines
    processes: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryFile() as output, tempfile.TemporaryDirectory() as folder:
        try:
            for rank in range(ranks):
                own = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank % local, "LOCAL_WORLD_SIZE": local}
                own |= {"GROUP_RANK": rank // local, "MASTER_PORT": store.port, "TORCHELASTIC_USE_AGENT_STORE": True}
                told = {name: str(value) for name, value in own.items()} | {"MASTER_ADDR": "127.0.0.1"}
                processes.append(
                    subprocess.Popen(
                        whole,
                        cwd=folder,
                        env=environ | (told if ranks > 1 else {}),
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=output,
                        start_new_session=True,
                    )
                )
            until = time.monotonic() + seconds
            failed = any(process.wait(max(0.0, until - time.monotonic())) for process in processes)
        except subprocess.TimeoutExpired:
            failed = True
        finally:
            for sent in (signal.SIGTERM, signal.SIGKILL):  # a launcher that is asked ends its workers
                for process in processes:
                    with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                        os.killpg(process.pid, sent)
                        process.wait(10)
        output.seek(0)
        return output.read().decode(errors="replace")[-6000:] or "nothing was printed" if failed else ""
