"""``torch-hal run --nnodes 1:2``: a machine is lost, and the other goes on with every remaining sample."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from python_processes import SETTINGS

from .test_command_line import is_running, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("started_not_forked")]

SCRIPT = Path(__file__).parent / "scripts" / "elastic.py"
RENDEZVOUS = "last_call_timeout=10,keep_alive_interval=1,keep_alive_max_attempt=3,join_timeout=60"

Seen = list[tuple[int, int, list[float]]]


def seen(out: Path, world_size: int, epoch: int) -> Seen:
    """Batch number, process, and samples of each batch of an epoch that a run of this size has begun."""
    found: Seen = []
    for path in out.glob("seen.*"):
        for line in path.read_text().splitlines():
            of_epoch, size, batch, samples = line.split(" ", 3)
            if (int(of_epoch), int(size)) == (epoch, world_size):
                found.append((int(batch), int(path.suffix[1:]), [float(value) for value in samples.split(",")]))
    return sorted(found)


def is_served(port: int) -> bool:
    """Whether a process listens at a port of this machine."""
    with socket.socket() as asking:
        return asking.connect_ex(("127.0.0.1", port)) == 0


def test_a_lost_machine(tmp_path: Path) -> None:
    """The agent and the process of one of two machines are killed within the second epoch of three.

    The other starts again alone from the last checkpoint. Of that epoch it sees each sample that was not part of a
    saved step exactly once; and the third epoch whole.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = ["--nnodes", "1:2", "--rdzv-endpoint", f"127.0.0.1:{port}", "--local-addr", "127.0.0.1"]
    options += ["--rdzv-conf", RENDEZVOUS, "--max-restarts", "3", "--devices", "1"]
    environ = {name: value for name, value in os.environ.items() if not name.startswith(SETTINGS)}
    environ |= {"OUT": str(tmp_path), "OMP_NUM_THREADS": "1"}
    machines: list[subprocess.Popen[bytes]] = []
    try:
        for number in range(2):
            with open(tmp_path / f"machine{number}.log", "wb") as log:
                command = [sys.executable, "-m", "core.run", *options, str(SCRIPT), "slowly"]
                machines.append(subprocess.Popen(command, env=environ, cwd=tmp_path, stdout=log, stderr=log))
            wait_for(lambda: is_served(port), 60.0)  # by the first one, which the second one then joins
        wait_for(lambda: len(seen(tmp_path, 2, 1)) >= 8, 150.0)
        processes = {process for _, process, _ in seen(tmp_path, 2, 1)}
        machines[1].kill()
        assert machines[1].wait(30) == -signal.SIGKILL
        wait_for(lambda: not any(map(is_running, processes)), 60.0)
        assert machines[0].wait(150) == 0, (tmp_path / "machine0.log").read_text()
    finally:
        for machine in machines:
            machine.kill()
            machine.wait()
    again = seen(tmp_path, 1, 1)
    rest = [value for _, _, samples in again for value in samples]
    saved = [value for batch, _, samples in seen(tmp_path, 2, 1) if batch < again[0][0] for value in samples]
    last = [value for _, _, samples in seen(tmp_path, 1, 2) for value in samples]
    assert len(last) == len(set(last)) == 77
    assert len(rest) == len(set(rest))
    assert not set(rest) & set(saved)
    assert set(rest) | set(saved) == set(last)
