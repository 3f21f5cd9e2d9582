"""A run on two hosts, each a network namespace: it trains, and it ends when the link between them is lost."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch

SCRIPT = Path(__file__).parent / "scripts" / "two_hosts.py"
PORT = 29517
"""In namespaces of their own, every port is free."""
SUBNET = "10.213.77"
LIMIT = 90
"""Seconds until both hosts have given up after the link is lost; a collective may take 15."""


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=20)


@attrs.frozen
class Host:
    """A namespace with one address, and the other end of its cable in the other."""

    namespace: str
    device: str
    address: str

    def start(self, command: list[str], output: Path, names_interface: bool = False) -> subprocess.Popen[bytes]:
        """Run a command there."""
        environ = {**os.environ, "OMP_NUM_THREADS": "1"}
        environ.pop("GLOO_SOCKET_IFNAME", None)
        if names_interface:
            environ["GLOO_SOCKET_IFNAME"] = self.device
        with output.open("wb") as file:
            return subprocess.Popen(
                ["ip", "netns", "exec", self.namespace, *command],
                env=environ,
                cwd=output.parent,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )


@pytest.fixture
def hosts() -> Iterator[tuple[Host, Host]]:
    """Two of them."""
    if shutil.which("ip") is None:
        pytest.skip("network namespaces are made by the command ip of iproute2")
    mark = f"{os.getpid() % 100000}"
    pair = tuple(Host(f"hal-{mark}-{end}", f"v{mark}{end}", f"{SUBNET}.{end}") for end in (1, 2))
    try:
        try:
            for host in pair:
                _ip("netns", "add", host.namespace)
            _ip("link", "add", pair[0].device, "type", "veth", "peer", "name", pair[1].device)
            for host in pair:
                _ip("link", "set", host.device, "netns", host.namespace)
                _ip("-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", host.device)
                _ip("-n", host.namespace, "link", "set", host.device, "up")
                _ip("-n", host.namespace, "link", "set", "lo", "up")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces cannot be made here: {error.stderr.strip()}")
        yield pair[0], pair[1]
    finally:
        for host in pair:
            subprocess.run(["ip", "netns", "del", host.namespace], check=False, capture_output=True, timeout=20)


def _command(launcher: str, host: Host, batches: int, strategy: str = "ddp") -> list[str]:
    endpoint = f"{SUBNET}.1:{PORT}"
    if launcher == "torchrun":
        start = ["-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d"]
        start += ["--rdzv-endpoint", endpoint, "--rdzv-id", "two-hosts", "--local-addr", host.address]
        # torchrun compares with the addresses that the machine's name has, and a namespace has others.
        start += ["--rdzv-conf", f"is_host={int(host.address.endswith('.1'))}"]
    else:
        start = ["-m", "core.run", "--nnodes", "2", "--rdzv-endpoint", endpoint, "--local-addr", host.address]
    return [sys.executable, *start, str(SCRIPT), str(batches), strategy]


def _processes_in(hosts: tuple[Host, Host]) -> list[str]:
    commands = [["ip", "netns", "pids", host.namespace] for host in hosts]
    runs = [subprocess.run(command, check=True, capture_output=True, text=True) for command in commands]
    return [found for run in runs for found in run.stdout.split()]


def _end(processes: list[subprocess.Popen[Any]], seconds: float) -> list[int]:
    """Wait for all; the exit codes. One that does not end is ended, with what it has started."""
    deadline = time.monotonic() + seconds
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(deadline - time.monotonic(), 0.1))
    ended = [process.poll() for process in processes]
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return [-1000 if code is None else code for code in ended]


def _weights_by_hand(batches: int) -> list[float]:
    """Of one process, whose batch has an item of each rank."""
    torch.manual_seed(0)
    net = torch.nn.Linear(3, 1, dtype=torch.float64)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for pair in torch.linspace(-1, 1, 3 * 2 * batches, dtype=torch.float64).reshape(batches, 2, 3):
        optimizer.zero_grad()
        (net(pair) ** 2).mean().backward()
        optimizer.step()
    values: list[float] = torch.cat([parameter.detach().flatten() for parameter in net.parameters()]).tolist()
    return values


@pytest.mark.parametrize(
    ("launcher", "strategy"),
    [
        pytest.param("torch-hal run", "ddp", marks=pytest.mark.slow),
        pytest.param("torch-hal run", "fsdp", marks=pytest.mark.exhaustive),
        pytest.param("torchrun", "ddp", marks=pytest.mark.exhaustive),
        pytest.param("torchrun", "fsdp", marks=pytest.mark.exhaustive),
    ],
)
def test_two_hosts_train(launcher: str, strategy: str, hosts: tuple[Host, Host], tmp_path: Path) -> None:
    """Weights are those of one process; ``torch-hal run`` finds the interface that leads to the other host."""
    if strategy == "fsdp" and importlib.util.find_spec("torch_hal_fsdp") is None:
        pytest.skip("torch-hal-fsdp is not installed")
    outputs = [tmp_path / "one", tmp_path / "two"]
    running = [
        host.start(_command(launcher, host, 6, strategy), output, launcher == "torchrun")
        for host, output in zip(hosts, outputs, strict=True)
    ]
    codes = _end(running, 120)
    texts = [output.read_text() for output in outputs]
    assert codes == [0, 0], texts
    found = [match for text in texts for match in re.findall(r"weights \[(.*)\] of 2", text)]
    assert len(found) == 1, texts
    assert [float(value) for value in found[0].split(",")] == pytest.approx(_weights_by_hand(6), abs=1e-8)


@pytest.mark.exhaustive
def test_the_interface_that_leads_nowhere(hosts: tuple[Host, Host], tmp_path: Path) -> None:
    """Under torchrun gloo listens at the address of the machine's name; the error names the variable and interfaces."""
    outputs = [tmp_path / "one", tmp_path / "two"]
    running = [host.start(_command("torchrun", host, 6), output) for host, output in zip(hosts, outputs, strict=True)]
    codes = _end(running, 120)
    if 0 in codes:
        pytest.skip("the name of this machine stands for an address that both hosts reach")
    said = [output.read_text() for output in outputs]
    advice = "set GLOO_SOCKET_IFNAME on each machine. Interfaces of this machine:"
    # When the first has failed, torchrun's agent of the other host ends that one's process, perhaps before it speaks.
    assert any(f"{advice} {host.device!r}" in text for host, text in zip(hosts, said, strict=True)), said


@pytest.mark.slow
def test_the_link_is_lost(hosts: tuple[Host, Host], tmp_path: Path) -> None:
    """Both hosts give up within the limit, say whom they lost, and leave no process.

    Not under torchrun: its agent on the second machine waits until the system gives the connection up.
    """
    launcher = "torch-hal run"
    outputs = [tmp_path / "one", tmp_path / "two"]
    running = [host.start(_command(launcher, host, 5000), output) for host, output in zip(hosts, outputs, strict=True)]
    try:
        deadline = time.monotonic() + 120
        while any("trains" not in output.read_text() for output in outputs):
            assert time.monotonic() < deadline, [output.read_text() for output in outputs]
            assert [process.poll() for process in running] == [None, None], [output.read_text() for output in outputs]
            time.sleep(0.2)
        _ip("-n", hosts[0].namespace, "link", "set", hosts[0].device, "down")
        lost = time.monotonic()
    finally:
        codes = _end(running, LIMIT)
    seconds = time.monotonic() - lost
    texts = [output.read_text() for output in outputs]
    print(f"{launcher}: {seconds:.1f} s, exit codes {codes}", *texts, sep="\n")
    assert not {0, -1000} & set(codes), (codes, texts)
    assert "rank(s) 1 did not answer" in texts[0], texts
    assert f"at {SUBNET}.1:{PORT}, or one lost the machine that serves it" in texts[1], texts
    while _processes_in(hosts):  # workers of a killed rank end when they have noticed it
        assert time.monotonic() < lost + seconds + 10, texts
        time.sleep(0.2)
