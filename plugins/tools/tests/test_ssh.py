"""``torch-hal ssh``: on a stand-in for ssh, and with OpenSSH's client on a server where asyncssh is installed."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

STAND_IN = """#!/bin/sh
while [ "$1" = -o ]; do shift 2; done
[ "$1" = nowhere ] && { echo "ssh: Could not resolve hostname nowhere" >&2; exit 255; }
shift; cd /
exec env -i PATH="$PATH" HOME="$HOME" sh -c "$*"
"""
"""Runs the command here, in another directory and without this process's environment, as a login there would."""

SERVER = """
import asyncio, os, sys
import asyncssh

async def handle(process):
    pipe, environ = asyncio.subprocess.PIPE, {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"]}
    child = await asyncio.create_subprocess_shell(
        process.command, env=environ, cwd="/", start_new_session=True, stdin=pipe, stdout=pipe, stderr=pipe
    )
    await process.redirect(stdin=child.stdin, stdout=child.stdout, stderr=child.stderr)
    process.exit(await child.wait())

async def serve():
    client, key = asyncssh.generate_private_key("ssh-ed25519"), asyncssh.generate_private_key("ssh-ed25519")
    os.umask(0o077)
    client.write_private_key(sys.argv[1])
    keys = asyncssh.import_authorized_keys(client.export_public_key().decode())
    listening = await asyncssh.listen(
        "127.0.0.1", 0, server_host_keys=[key], authorized_client_keys=keys, process_factory=handle, encoding=None
    )
    print(listening.get_port(), flush=True)
    await listening.wait_closed()

asyncio.run(serve())
"""
"""An SSH server that runs each command on this machine in a new session, as sshd does. It prints its port."""

MAIN = "import sys; from torch_hal_tools import ssh; ssh.GRACE_SECONDS = 2; sys.exit(ssh.main(sys.argv[1:], 'ssh'))"

TRAIN = """
import sys
import torch
from torch.utils.data import DataLoader, TensorDataset
from torch_hal import Runtime

torch.manual_seed(0)
runtime, layer = Runtime(), torch.nn.Linear(3, 1)
loader = DataLoader(TensorDataset(torch.randn(22, 3)), batch_size=2)
model, optimizer, loader = runtime.prepare(layer, torch.optim.SGD(layer.parameters(), lr=0.1), loader)
for epoch in range(2):
    for (inputs,) in loader:
        optimizer.zero_grad()
        runtime.backward(model(inputs).square().mean())
        optimizer.step()
# At once: two processes write.
sys.stdout.write(f"weights {runtime.num_processes} {layer.weight.tolist()}\\n")
"""

WAIT = """
import os, sys, time
from torch_hal import Runtime
Runtime()
open(os.path.join(sys.argv[1], os.environ["RANK"]), "w").write(str(os.getpid()))
try:
    time.sleep(300 if os.environ["RANK"] != sys.argv[2] else 0)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.exit(130)
sys.exit(7)
"""


@pytest.fixture(params=["stand-in", "real"])
def ssh(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The value of ``--ssh``; 127.0.0.1 and localhost are machines of it."""
    if request.param == "stand-in":
        program = tmp_path / "ssh"
        program.write_text(STAND_IN)
        program.chmod(0o700)
        yield str(program)
        return
    pytest.importorskip("asyncssh")
    if shutil.which("ssh") is None:
        pytest.skip("no ssh")
    options = ["StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR", "ConnectTimeout=20"]
    given = [part for option in options for part in ("-o", option)]
    key = str(tmp_path / "key")
    with subprocess.Popen([sys.executable, "-c", SERVER, key], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            port = server.stdout.readline().strip()
            yield shlex.join(["ssh", "-F", "/dev/null", "-p", port, "-i", key, *given])
        finally:
            server.terminate()


def start(ssh: str, folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Run ``torch-hal ssh`` on 127.0.0.1 and localhost."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["--ssh", ssh, "--rdzv-endpoint", f"127.0.0.1:{port}", "127.0.0.1,localhost"]
    run = ["--local-addr", "127.0.0.1", "--accelerator", "cpu", *arguments]
    environ = {**os.environ, "CORE_PRECISION": "64-true", "TOLD": "a b;'c", "NOT_TOLD": "x"}
    return subprocess.Popen(
        [sys.executable, "-c", MAIN, "--env", "TOLD", *command, *run],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=environ,
    )


def ended(process: subprocess.Popen[str], code: int) -> tuple[list[str], str]:
    """What it printed: lines, and errors."""
    try:
        printed, errors = process.communicate(timeout=150)
    finally:
        process.kill()
    assert process.returncode == code, printed + errors
    return printed.splitlines(), errors


def wait_for(paths: Sequence[Path]) -> list[int]:
    """Wait until the files are written; the numbers in them."""
    deadline = time.monotonic() + 120
    while not all(path.exists() and path.read_text() for path in paths):
        assert time.monotonic() < deadline, "the script did not start"
        time.sleep(0.1)
    return [int(path.read_text()) for path in paths]


def is_gone(pid: int) -> bool:
    """Whether the process ends within a minute."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


def test_both_machines_run_the_command(ssh: str, tmp_path: Path) -> None:
    """In this directory, with the variables that were named and torch-hal's; each line has its machine's name."""
    told = 'echo "$RANK $WORLD_SIZE $PWD $CORE_PRECISION $TOLD.$NOT_TOLD"'
    printed, _ = ended(start(ssh, tmp_path, "--devices", "1", "--no-python", "sh", "-c", told), 0)
    ranks = [line.removeprefix("127.0.0.1: ").removeprefix("localhost: ").partition(" ") for line in printed]
    assert {line.partition(": ")[0] for line in printed} == {"127.0.0.1", "localhost"}
    assert sorted(rank for rank, _, _ in ranks) == ["0", "1"]
    assert {rest for _, _, rest in ranks} == {f"2 {tmp_path} 64-true a b;'c."}


def test_training_equals_that_on_one_machine(ssh: str, tmp_path: Path) -> None:
    """Two machines with one process each, next to two processes of one machine; 11 batches do not divide."""
    (tmp_path / "train.py").write_text(TRAIN)
    printed, _ = ended(start(ssh, tmp_path, "--devices", "1", "train.py"), 0)
    alone = subprocess.run(
        [sys.executable, "-m", "torch_hal.run", "--accelerator", "cpu", "--devices", "2", "train.py"],
        cwd=tmp_path,
        env={**os.environ, "CORE_PRECISION": "64-true"},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    weights = {line for line in alone.stdout.splitlines() if line.startswith("weights 2")}
    assert len(weights) == 1
    assert {line.partition(": ")[2] for line in printed if "weights" in line} == weights


def test_a_failure_ends_the_other_machine(ssh: str, tmp_path: Path) -> None:
    """The exit code and the machine are those of the first that failed."""
    (tmp_path / "wait.py").write_text(WAIT)
    process = start(ssh, tmp_path, "--devices", "1", "wait.py", str(tmp_path), "1")
    pids = wait_for([tmp_path / "0", tmp_path / "1"])
    _, errors = ended(process, 7)
    assert "failed first, with exit code 7" in errors
    assert all(map(is_gone, pids))


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_the_machines_end_with_the_command(ssh: str, tmp_path: Path, how: signal.Signals) -> None:
    """At Ctrl-C the scripts get it, and what they print is shown; a command that is killed leaves nothing there."""
    (tmp_path / "wait.py").write_text(WAIT)
    process = start(ssh, tmp_path, "--devices", "1", "wait.py", str(tmp_path), "none")
    pids = wait_for([tmp_path / "0", tmp_path / "1"])
    process.send_signal(how)
    printed, errors = ended(process, 130 if how == signal.SIGINT else -signal.SIGKILL)
    assert all(map(is_gone, pids))
    if how == signal.SIGINT:
        assert {f"{host}: interrupted" for host in ("127.0.0.1", "localhost")} <= {*printed}
        assert "interrupted, exit code 130" in errors


def run_main(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the verb to its end."""
    command = [sys.executable, "-c", MAIN, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_no_connection(tmp_path: Path) -> None:
    """The message names the machine and what must work."""
    program = tmp_path / "ssh"
    program.write_text(STAND_IN)
    program.chmod(0o700)
    done = run_main("--ssh", str(program), "nowhere", "train.py")
    assert done.returncode == 255
    assert done.stdout == "nowhere: ssh: Could not resolve hostname nowhere\n"
    assert done.stderr == "ssh: no connection to nowhere. 'ssh nowhere true' must work, and ask for no password.\n"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["a,,b", "t.py"], "'a,,b' must be different hosts, separated by commas, such as node1,node2."),
        (["a,a", "t.py"], "'a,a' must be different hosts"),
        (["a,b"], "no script is given"),
        (["a,b", "--nnodes=3", "t.py"], "'--nnodes=3' follows from the hosts; --rdzv-endpoint stands before them"),
        (["--env", "NOT_SET", "a", "t.py"], "--env: 'NOT_SET' is not set"),
        (["--ssh", "/no/such/ssh", "a", "t.py"], "--ssh: '/no/such/ssh' cannot be started"),
    ],
)
def test_wrong_arguments(arguments: list[str], error: str) -> None:
    """One line names what was given."""
    done = run_main(*arguments)
    assert done.returncode == 2
    assert error in done.stderr
